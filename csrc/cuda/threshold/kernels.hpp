// All elements from some magnitude on: count those of each tile, place the tiles, hand them out.
#pragma once

#include "../tile.hpp"

namespace hvd_compress::cuda {

constexpr int kSelectThreads = 256;
constexpr int kSelectRounds = 4;
constexpr int kSelectTile = kSelectThreads * kSelectRounds * kWide;
constexpr int kSelectWords = kSelectTile / 32;

struct SelectShared {
    std::uint32_t mask[kSelectWords], before[kSelectWords], scratch[32];
};

template <class T>
struct Reaching {
    Plain<T> source;
    std::uint32_t low;  // key of the threshold

    // Bit i of the mask is element i of the tile; returns how many there are, and in `before` how many before each
    // word.
    template <class B, class Values>
    HVD_COMPRESS_TILE std::uint32_t mark(const B& block, SelectShared& shared, Values& v) const {
        const std::int64_t start = block.index * kSelectTile;
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            if (t < kSelectWords) shared.mask[t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSelectRounds; ++round) {
                source.read(start + (round * kSelectThreads + t) * kWide, v[t].v[round]);
            }
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSelectRounds; ++round) {
                const int own = (round * kSelectThreads + t) * kWide;
                std::uint32_t bits = 0;
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const bool reaches = Traits<float>::key(v[t].v[round][j]) >= low && start + own + j < source.n;
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

template <class T>
struct CountReaching {
    static constexpr int kThreads = kSelectThreads;
    using Shared = SelectShared;
    Reaching<T> reaching;
    std::int64_t* rows;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<SelectValues> v;
        const std::uint32_t total = reaching.mark(block, shared, v);
        block.each([&](int t) {
            if (t == 0) rows[block.index] = total;
        });
    }
};

// Replaces each tile's count by those of the tiles before it; one block, and each thread for as many tiles.
struct PlaceCounts {
    static constexpr int kThreads = 1024;
    struct Shared {
        Count scratch[32];
    };
    std::int64_t* rows;
    std::int64_t tiles;
    std::int64_t* count;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t each = (tiles + kThreads - 1) / kThreads;
        typename B::template Each<Count> sums;
        block.each([&](int t) {
            sums[t] = 0;
            for (std::int64_t tile = t * each; tile < (t + 1) * each && tile < tiles; ++tile) {
                sums[t] += static_cast<Count>(rows[tile]);
            }
        });
        const Count total = block.exclusive_sum(sums, shared.scratch);
        block.each([&](int t) {
            std::int64_t before = static_cast<std::int64_t>(sums[t]);
            for (std::int64_t tile = t * each; tile < (t + 1) * each && tile < tiles; ++tile) {
                const std::int64_t own = rows[tile];
                rows[tile] = before;
                before += own;
            }
            if (t == 0) *count = static_cast<std::int64_t>(total);
        });
    }
};

template <class T>
struct EmitReaching {
    static constexpr int kThreads = kSelectThreads;
    using Shared = SelectShared;
    Reaching<T> reaching;
    const std::int64_t* rows;
    std::int64_t limit;  // what there is room for, should someone have written to x meanwhile
    std::int32_t* indices;
    T* values;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<SelectValues> v;
        reaching.mark(block, shared, v);
        const std::int64_t start = block.index * kSelectTile, first = rows[block.index];
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSelectRounds; ++round) {
                const int own = (round * kSelectThreads + t) * kWide;
                const std::uint32_t mask = shared.mask[own / 32];
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const int bit = own % 32 + j;
                    const std::int64_t place =
                        first + shared.before[own / 32] + ones(mask & ((std::uint32_t{1} << bit) - 1));
                    if ((mask >> bit & 1u) == 0 || place >= limit) continue;
                    indices[place] = static_cast<std::int32_t>(start + own + j);
                    values[place] = from_float<T>(v[t].v[round][j]);
                }
            }
        });
    }
};

}  // namespace hvd_compress::cuda
