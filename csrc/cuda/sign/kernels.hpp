// The steps of sign compression: correct and pack, average, subtract what was sent; and adding what others sent.
#pragma once

#include "../tile.hpp"
#include "hvd_compress/sign.hpp"

namespace hvd_compress::cuda {

constexpr int kSignThreads = 256;
constexpr int kSignRounds = static_cast<int>(kSumBlock) / kSignThreads / kWide;
using SignTile = Tile<kSignThreads, kSignRounds>;
static_assert(SignTile::kNumel == kSumBlock, "a tile is a block of the sum");

// Adds lanes pairwise; the sum is then in lanes[0], for thread 0. The number of lanes is a power of two.
template <class B>
HVD_COMPRESS_TILE void add_lanes(const B& block, double* lanes, int count) {
    for (int width = count / 2; width > 0; width /= 2) {
        block.sync();
        block.each([&](int t) {
            if (t < width) lanes[t] += lanes[t + width];
        });
    }
}

HVD_COMPRESS_TILE float without_sent(float v, float scale) { return v - (v < 0.0f ? -scale : scale); }

// Error feedback where corrected of the step before is kept, of which *kept_scale was sent.
template <class G, class R>
struct FedKept : Fed<G, R> {
    const float* kept_scale;

    FedKept(ConstArray grad_array, ConstArray kept, const float* scale, Array out_array, std::int64_t numel)
        : Fed<G, R>(grad_array, kept, out_array, numel), kept_scale(scale) {}

    template <int threads, int rounds>
    HVD_COMPRESS_TILE void read(Tile<threads, rounds> tile, int t, float (&v)[rounds][kWide]) const {
        float g[rounds][kWide];
        in_tile(tile, this->n, this->aligned, [&](auto whole) {
            load<decltype(whole)::value>(this->grad, tile, t, this->n, g);
            load<decltype(whole)::value>(this->residual, tile, t, this->n, v);
        });
        const float sent = *kept_scale;
        for_each_value(v, [&](float& x, int round, int j) {
            const float residual = to_float(from_float<R>(without_sent(x, sent)));
            x = to_float(from_float<R>(residual + g[round][j]));
        });
    }
};

template <class Source>
struct Correct {
    static constexpr int kThreads = kSignThreads;
    struct Shared {
        float magnitudes[kSumBlock];
        std::uint32_t bits[kSumBlock / 32];
        double lanes[kSumLanes];
    };
    Source source;
    std::uint8_t* bits;
    double* sums;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            for (int i = t; i < kSumBlock / 32; i += kThreads) shared.bits[i] = 0;
        });
        block.sync();
        block.each([&](int t) {
            const SignTile tile{block.index};
            float v[kSignRounds][kWide];
            source.read(tile, t, v);
            source.write(tile, t, v);
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSignRounds; ++round) {
                const int own = SignTile::place(round, t);
                std::uint32_t positive = 0;
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    shared.magnitudes[own + j] = from_bits(to_bits(v[round][j]) & 0x7fffffffu);
                    positive |= static_cast<std::uint32_t>(!(v[round][j] < 0.0f) && tile.at(round, t) + j < source.n)
                                << j;
                }
                atomic_or(&shared.bits[own / 32], positive << own % 32);
            }
        });
        block.sync();
        if (source.n < (block.index + 1) * kSumBlock) {  // what a step before has left beyond the last element is not 0
            block.each([&](int t) {
                const auto end = static_cast<int>(source.n - block.index * kSumBlock);
                for (int i = end + t; i < kSumBlock; i += kThreads) shared.magnitudes[i] = 0.0f;
            });
            block.sync();
        }
        block.each([&](int t) {
            if (t < kSumLanes) {
                double sum = 0.0;
                for (int i = t; i < kSumBlock; i += kSumLanes) sum += static_cast<double>(shared.magnitudes[i]);
                shared.lanes[t] = sum;
            }
            const std::int64_t first = block.index * (kSumBlock / 8), end = sign_bytes(source.n);
            for (int i = t; i < kSumBlock / 8 && first + i < end; i += kThreads) {
                bits[first + i] = static_cast<std::uint8_t>(shared.bits[i / 4] >> i % 4 * 8);
            }
        });
        add_lanes(block, shared.lanes, kSumLanes);
        block.each([&](int t) {
            if (t == 0) sums[block.index] = shared.lanes[0];
        });
    }
};

// *scale = mean of what the blocks' sums add up to.
struct Average {
    static constexpr int kThreads = kBlockLanes;
    struct Shared {
        double lanes[kBlockLanes];
    };
    const double* sums;
    std::int64_t n;
    float* scale;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            double sum = 0.0;
            for (std::int64_t i = t; i * kSumBlock < n; i += kBlockLanes) sum += sums[i];
            shared.lanes[t] = sum;
        });
        add_lanes(block, shared.lanes, kBlockLanes);
        block.each([&](int t) {
            if (t == 0) *scale = n == 0 ? 0.0f : static_cast<float>(shared.lanes[0] / static_cast<double>(n));
        });
    }
};

// x -= *scale by the sign of x, from the last tile on: what was written last may still be in the cache.
template <class R>
struct SubtractSent {
    static constexpr int kThreads = kSignThreads;
    struct Shared {};
    R* x;
    std::int64_t n;
    bool aligned;
    const float* scale;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        const SignTile tile{block.count - 1 - block.index};
        block.each([&](int t) {
            float v[kSignRounds][kWide];
            in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(x, tile, t, n, v); });
            const float sent = *scale;
            for_each_value(v, [&](float& value, int, int) { value = without_sent(value, sent); });
            in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(x, tile, t, n, v); });
        });
    }
};

template <class T>
struct AddSigns {
    static constexpr int kThreads = kSignThreads;
    struct Shared {};
    const std::uint8_t* bits;
    const float* scale;
    T* out;
    std::int64_t n;
    bool aligned;
    float weight;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        const SignTile tile{block.index};
        block.each([&](int t) {
            float v[kSignRounds][kWide];
            std::uint32_t own[kSignRounds] = {};
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kSignRounds; ++round) {
                const std::int64_t i = tile.at(round, t);
                if (i < n) own[round] = bits[i / 8] >> i % 8;
            }
            in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(out, tile, t, n, v); });
            const float step = weight * *scale;
            for_each_value(v, [&](float& x, int round, int j) { x += (own[round] >> j & 1u) != 0 ? step : -step; });
            in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(out, tile, t, n, v); });
        });
    }
};

}  // namespace hvd_compress::cuda
