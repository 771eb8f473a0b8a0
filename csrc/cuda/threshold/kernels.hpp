// All elements from some magnitude on: count those of each tile, place the tiles, hand them out.
#pragma once

#include "../places.hpp"
#include "../tile.hpp"
#include "hvd_compress/threshold.hpp"

namespace hvd_compress::cuda {

constexpr int kSelectThreads = 256;
constexpr int kSelectRounds = 4;
using SelectTile = Tile<kSelectThreads, kSelectRounds>;
constexpr int kSelectWords = SelectTile::kNumel / 32;

struct SelectShared {
    std::uint32_t mask[kSelectWords], before[kSelectWords], scratch[32];
};

// As Fed, with a velocity: what is read updates it, too.
template <class G>
struct FedByMomentum {
    const G* grad;
    const float* residual;
    Momentum momentum;
    float* out;
    std::int64_t n;
    bool aligned;

    FedByMomentum(ConstArray grad_array, const float* residual_data, Momentum velocity, float* out_data,
                  std::int64_t numel)
        : grad(static_cast<const G*>(grad_array.data)),
          residual(residual_data),
          momentum(velocity),
          out(out_data),
          n(numel),
          aligned(is_aligned(grad) && is_aligned(residual) && is_aligned(momentum.velocity) &&
                  is_aligned(momentum.out) && is_aligned(out)) {}

    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        float g[rounds][kWide], own[rounds][kWide];
        in_tile(tile, n, aligned, [&](auto whole) {
            load<decltype(whole)::value>(grad, tile, t, n, g);
            load<decltype(whole)::value>(momentum.velocity, tile, t, n, own);
            load<decltype(whole)::value>(residual, tile, t, n, v);
        });
        for_each_value(own, [&](float& x, int round, int j) { x = momentum.factor * x + g[round][j]; });
        for_each_value(v, [&](float& x, int round, int j) { x = x + own[round][j]; });
        in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(momentum.out, tile, t, n, own); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void write(Tile<threads, rounds> tile, int t, const float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(out, tile, t, n, v); });
    }
};

// What one of the two above has left: elements that are handed out become 0.
struct Taken {
    float *x, *velocity_out;
    std::int64_t n;
    bool aligned;

    Taken(float* data, float* velocity_data, std::int64_t numel)
        : x(data), velocity_out(velocity_data), n(numel), aligned(is_aligned(x)) {}

    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(x, tile, t, n, v); });
    }
    template <int threads, int rounds>
    HVD_COMPRESS_TILE void write(Tile<threads, rounds>, int, const float (&)[rounds][kWide]) const {}
    HVD_COMPRESS_TILE void set(std::int64_t i, float value) const {
        x[i] = value;
        if (velocity_out != nullptr) velocity_out[i] = value;
    }
};

template <class Source>
struct Reaching {
    Source source;
    std::uint32_t low;  // key of the threshold

    // Bit i of the mask is element i of the tile; returns how many there are, and in `before` how many before each
    // word.
    template <class B, class Values>
    HVD_COMPRESS_TILE std::uint32_t mark(const B& block, SelectShared& shared, Values& v) const {
        const SelectTile tile{block.index};
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            if (t < kSelectWords) shared.mask[t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            source.read(tile, t, v[t].v);
            source.write(tile, t, v[t].v);
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSelectRounds; ++round) {
                const int own = SelectTile::place(round, t);
                std::uint32_t bits = 0;
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const bool reaches =
                        Traits<float>::key(v[t].v[round][j]) >= low && tile.at(round, t) + j < source.n;
                    bits |= static_cast<std::uint32_t>(reaches) << j;
                }
                if (bits != 0) atomic_or(&shared.mask[own / 32], bits << own % 32);
            }
        });
        block.sync();
        block.each([&](int t) { sums[t] = t < kSelectWords ? ones(shared.mask[t]) : 0; });
        const std::uint32_t total = block.exclusive_sum(sums, shared.scratch);
        block.each([&](int t) {
            if (t < kSelectWords) shared.before[t] = sums[t];
        });
        block.sync();
        return total;
    }
};

struct SelectValues {
    float v[kSelectRounds][kWide];
};

template <class Source>
struct CountReaching {
    static constexpr int kThreads = kSelectThreads;
    using Shared = SelectShared;
    Reaching<Source> reaching;
    Count* rows;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<SelectValues> v;
        const std::uint32_t total = reaching.mark(block, shared, v);
        block.each([&](int t) {
            if (t == 0) rows[block.index] = total;
        });
    }
};

// Replaces each tile's count by those of the tiles before it.
struct PlaceCounts {
    static constexpr int kThreads = kPlaceThreads;
    using Shared = PlaceShared;
    Count* rows;
    std::int64_t tiles;
    std::int64_t* count;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Count total = place(block, shared, rows, tiles);
        block.each([&](int t) {
            if (t == 0) *count = static_cast<std::int64_t>(total);
        });
    }
};

template <class Source, class T>
struct EmitReaching {
    static constexpr int kThreads = kSelectThreads;
    using Shared = SelectShared;
    Reaching<Source> reaching;
    const Count* rows;
    std::int64_t limit;  // what there is room for, should someone have written to x meanwhile
    std::int32_t* indices;
    T* values;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<SelectValues> v;
        reaching.mark(block, shared, v);
        const std::int64_t start = SelectTile{block.index}.start();
        const auto first = static_cast<std::int64_t>(rows[block.index]);
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSelectRounds; ++round) {
                const int own = SelectTile::place(round, t);
                const std::uint32_t mask = shared.mask[own / 32];
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const int bit = own % 32 + j;
                    const std::int64_t place =
                        first + shared.before[own / 32] + ones(mask & ((std::uint32_t{1} << bit) - 1));
                    if ((mask >> bit & 1u) == 0 || place >= limit) continue;
                    indices[place] = static_cast<std::int32_t>(start + own + j);
                    values[place] = from_float<T>(v[t].v[round][j]);
                    reaching.source.set(start + own + j, 0.0f);
                }
            }
        });
    }
};

}  // namespace hvd_compress::cuda
