// Four neighbouring elements at a time: one access of 16 or 8 bytes where memory is aligned to it. A thread asks for
// all that it needs of a tile before it uses any of it.
#pragma once

#include <type_traits>

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

// Elements i..i+3 of x (n), 0 beyond its end; i is a multiple of 4. `whole`: all four are there, and x is aligned.
template <bool whole, class T>
HVD_COMPRESS_TILE void load(const T* x, std::int64_t i, std::int64_t n, float (&v)[kWide]) {
    if constexpr (whole) {
        const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x + i);
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = to_float(pack.element[j]);
    } else {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) v[j] = i + j < n ? to_float(x[i + j]) : 0.0f;
    }
}

template <bool whole, class T>
HVD_COMPRESS_TILE void store(T* x, std::int64_t i, std::int64_t n, const float (&v)[kWide]) {
    if constexpr (whole) {
        Pack<T> pack;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) pack.element[j] = from_float<T>(v[j]);
        *reinterpret_cast<Pack<T>*>(x + i) = pack;
    } else {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide && i + j < n; ++j) x[i + j] = from_float<T>(v[j]);
    }
}

// The elements of a block's threads: `rounds` times four each, those of neighbouring threads side by side.
template <int threads, int rounds>
struct Tile {
    static constexpr int kNumel = threads * rounds * kWide;
    std::int64_t index;

    HVD_COMPRESS_TILE std::int64_t start() const { return index * kNumel; }
    HVD_COMPRESS_TILE bool lies_within(std::int64_t n) const { return start() + kNumel <= n; }
    HVD_COMPRESS_TILE std::int64_t at(int round, int t) const { return start() + place(round, t); }
    // Within the tile.
    static HVD_COMPRESS_TILE int place(int round, int t) { return (round * threads + t) * kWide; }
};

// Calls f(whole) with a type that says whether all of a tile is there and aligned: one branch for all its accesses, as
// a branch for each would have the one wait for the other.
template <class T, class F>
HVD_COMPRESS_TILE void in_tile(const T& tile, std::int64_t n, bool aligned, const F& f) {
    if (aligned && tile.lies_within(n)) {
        f(std::true_type{});
    } else {
        f(std::false_type{});
    }
}

template <bool whole, class T, int threads, int rounds>
HVD_COMPRESS_TILE void load(const T* x, Tile<threads, rounds> tile, int t, std::int64_t n, float (&v)[rounds][kWide]) {
    HVD_COMPRESS_UNROLL
    for (int round = 0; round < rounds; ++round) load<whole>(x, tile.at(round, t), n, v[round]);
}

template <bool whole, class T, int threads, int rounds>
HVD_COMPRESS_TILE void store(T* x, Tile<threads, rounds> tile, int t, std::int64_t n, const float (&v)[rounds][kWide]) {
    HVD_COMPRESS_UNROLL
    for (int round = 0; round < rounds; ++round) store<whole>(x, tile.at(round, t), n, v[round]);
}

// Calls f(v, round, j) for all values of a thread.
template <int rounds, class F>
HVD_COMPRESS_TILE void for_each_value(float (&v)[rounds][kWide], const F& f) {
    HVD_COMPRESS_UNROLL
    for (int round = 0; round < rounds; ++round) {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) f(v[round][j], round, j);
    }
}

// A gradient with error feedback: read() gives corrected, write() puts what is left of it to `out`.
template <class G, class R>
struct Fed {
    static constexpr bool kIsNarrow = sizeof(R) == 2;
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

    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        float g[rounds][kWide];
        in_tile(tile, n, aligned, [&](auto whole) {
            load<decltype(whole)::value>(grad, tile, t, n, g);
            load<decltype(whole)::value>(residual, tile, t, n, v);
        });
        for_each_value(v, [&](float& x, int round, int j) { x = to_float(from_float<R>(x + g[round][j])); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void write(Tile<threads, rounds> tile, int t, const float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(out, tile, t, n, v); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read_left(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(out, tile, t, n, v); });
    }
    // Some element of what write() has left.
    HVD_COMPRESS_TILE float left(std::int64_t i) const { return to_float(out[i]); }
    HVD_COMPRESS_TILE void set(std::int64_t i, float value) const { out[i] = from_float<R>(value); }
};

// A tensor that is only read.
template <class T>
struct Plain {
    static constexpr bool kIsNarrow = sizeof(T) == 2;
    const T* x;
    std::int64_t n;
    bool aligned;

    Plain(ConstArray array, std::int64_t numel)
        : x(static_cast<const T*>(array.data)), n(numel), aligned(is_aligned(x)) {}

    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(x, tile, t, n, v); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void write(Tile<threads, rounds>, int, const float (&)[rounds][kWide]) const {}
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read_left(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        read(tile, t, v);
    }
    HVD_COMPRESS_TILE float left(std::int64_t i) const { return to_float(x[i]); }
    HVD_COMPRESS_TILE void set(std::int64_t, float) const {}
};

}  // namespace hvd_compress::cuda
