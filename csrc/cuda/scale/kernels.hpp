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
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(x, tile, t, n, v); });
        for_each_value(v, [&](float& value, int, int) { value = to_float(from_float<T>(value * factor)); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void write(Tile<threads, rounds> tile, int t, const float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(x, tile, t, n, v); });
    }
};

}  // namespace hvd_compress::cuda
