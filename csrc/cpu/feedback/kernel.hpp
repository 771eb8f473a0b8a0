#pragma once

#include "hvd_compress/numeric.hpp"

namespace hvd_compress::cpu {

// Writes the error-fed gradient; returns the largest magnitude key in it (0 if n = 0), which says whether all is
// finite.
template <class G, class R>
typename Traits<R>::Key accumulate_kernel(const G* grad, const R* residual, R* out, std::int64_t n) {
    typename Traits<R>::Key largest = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        out[i] = corrected(grad[i], residual[i]);
        const auto key = Traits<R>::key(out[i]);
        largest = key > largest ? key : largest;
    }
    return largest;
}

}  // namespace hvd_compress::cpu
