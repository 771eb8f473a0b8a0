// The second half of a selection: what lies above the threshold, in the order of the indices.
#pragma once

#include "radix_select.hpp"

namespace hvd_compress::cpu {

// Calls emit(position, i) for the selected elements i in ascending order; returns how many there were, at most k.
// That is k, unless someone wrote to x since the threshold was found; it is never more, so that emit may write.
template <class T, class Emit>
std::int64_t compact(const T* x, std::int64_t n, std::int64_t k, Threshold<T> threshold, Emit emit) {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < n && found < k; ++i) {
        const auto key = Traits<T>::key(x[i]);
        if (key < threshold.key) continue;
        if (key == threshold.key && threshold.ties-- <= 0) continue;
        emit(found++, i);
    }
    return found;
}

}  // namespace hvd_compress::cpu
