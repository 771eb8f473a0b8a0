// Four neighbouring elements at a time: one access of 16 or 8 bytes where memory is aligned to it.
#pragma once

#include "block.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress::cuda {

constexpr int kWide = 4;

template <class T>
struct alignas(kWide * sizeof(T)) Pack {
    T element[kWide];
};

template <class T>
bool is_aligned(const T* data) {
    return reinterpret_cast<std::uintptr_t>(data) % sizeof(Pack<T>) == 0;
}

// Elements i..i+3 of x (n), 0 beyond its end; i is a multiple of 4.
template <class T>
HVD_COMPRESS_TILE void load(const T* x, std::int64_t i, std::int64_t n, bool aligned, float (&v)[kWide]) {
    if (aligned && i + kWide <= n) {
        const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x + i);
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = to_float(pack.element[j]);
    } else {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = i + j < n ? to_float(x[i + j]) : 0.0f;
    }
}

template <class T>
HVD_COMPRESS_TILE void store(T* x, std::int64_t i, std::int64_t n, bool aligned, const float (&v)[kWide]) {
    if (aligned && i + kWide <= n) {
        Pack<T> pack;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) pack.element[j] = from_float<T>(v[j]);
        *reinterpret_cast<Pack<T>*>(x + i) = pack;
    } else {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide && i + j < n; ++j) x[i + j] = from_float<T>(v[j]);
    }
}

// A gradient with error feedback: read() gives corrected, write() puts what is left of it to `out`.
template <class G, class R>
struct Fed {
    const G* grad;
    const R* residual;
    R* out;
    std::int64_t n;
    bool aligned;

    Fed(ConstArray grad_array, ConstArray residual_array, Array out_array, std::int64_t numel)
        : grad(static_cast<const G*>(grad_array.data)),
          residual(static_cast<const R*>(residual_array.data)),
          out(static_cast<R*>(out_array.data)),
          n(numel),
          aligned(is_aligned(grad) && is_aligned(residual) && is_aligned(out)) {}

    HVD_COMPRESS_TILE void read(std::int64_t i, float (&v)[kWide]) const {
        float g[kWide];
        load(grad, i, n, aligned, g);
        load(residual, i, n, aligned, v);
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = to_float(from_float<R>(v[j] + g[j]));
    }
    HVD_COMPRESS_TILE void write(std::int64_t i, const float (&v)[kWide]) const { store(out, i, n, aligned, v); }
    HVD_COMPRESS_TILE void read_left(std::int64_t i, float (&v)[kWide]) const { load(out, i, n, aligned, v); }
    HVD_COMPRESS_TILE float left(std::int64_t i) const { return to_float(out[i]); }
    HVD_COMPRESS_TILE void set(std::int64_t i, float value) const { out[i] = from_float<R>(value); }
};

// A tensor that is only read.
template <class T>
struct Plain {
    const T* x;
    std::int64_t n;
    bool aligned;

    Plain(ConstArray array, std::int64_t numel)
        : x(static_cast<const T*>(array.data)), n(numel), aligned(is_aligned(x)) {}

    HVD_COMPRESS_TILE void read(std::int64_t i, float (&v)[kWide]) const { load(x, i, n, aligned, v); }
    HVD_COMPRESS_TILE void write(std::int64_t, const float (&)[kWide]) const {}
    HVD_COMPRESS_TILE void read_left(std::int64_t i, float (&v)[kWide]) const { read(i, v); }
    HVD_COMPRESS_TILE float left(std::int64_t i) const { return to_float(x[i]); }
    HVD_COMPRESS_TILE void set(std::int64_t, float) const {}
};

}  // namespace hvd_compress::cuda
