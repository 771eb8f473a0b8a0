#pragma once

#include "hvd_compress/numeric.hpp"

namespace hvd_compress::cpu {

// out += step where the bit is set, out -= step where not.
template <class T>
void unpack_add(const std::uint8_t* bits, T* out, std::int64_t n, float step) {
    const float signed_step[2] = {-step, step};
    for (std::int64_t i = 0; i < n; ++i) {
        const int bit = (bits[i / 8] >> (i % 8)) & 1;
        out[i] = from_float<T>(to_float(out[i]) + signed_step[bit]);
    }
}

}  // namespace hvd_compress::cpu
