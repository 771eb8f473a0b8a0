// A tensor that is read scaled, and written as it was read.
#pragma once

#include "../tile.hpp"

namespace hvd_compress::cuda {

template <class T>
struct Scaled {
    T* x;
    float factor;
    std::int64_t n;
    bool aligned;

    Scaled(Array array, float by, std::int64_t numel)
        : x(static_cast<T*>(array.data)), factor(by), n(numel), aligned(is_aligned(x)) {}

    // Beyond the end 0 * factor, which is finite wherever a product within is.
    HVD_COMPRESS_TILE void read(std::int64_t i, float (&v)[kWide]) const {
        load(x, i, n, aligned, v);
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = to_float(from_float<T>(v[j] * factor));
    }
    HVD_COMPRESS_TILE void write(std::int64_t i, const float (&v)[kWide]) const { store(x, i, n, aligned, v); }
};

}  // namespace hvd_compress::cuda
