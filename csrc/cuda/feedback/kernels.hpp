// Error feedback by itself, and the flag that says whether all of a result is finite.
#pragma once

#include "../tile.hpp"

namespace hvd_compress::cuda {

struct SetFinite {
    static constexpr int kThreads = 32;
    struct Shared {};
    std::int32_t* finite;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            if (t == 0) *finite = 1;
        });
    }
};

template <class Source>
struct Accumulated {
    static constexpr int kThreads = 256;
    static constexpr int kRounds = 4;
    static constexpr int kTile = kThreads * kRounds * kWide;
    struct Shared {};
    Source source;
    std::int32_t* finite;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            float v[kRounds][kWide];
            bool good = true;
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kRounds; ++round) source.read(at(block.index, round, t), v[round]);
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kRounds; ++round) {
                source.write(at(block.index, round, t), v[round]);
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) good &= Traits<float>::key(v[round][j]) < Traits<float>::kInfinityKey;
            }
            if (!good) store_same(finite, 0);
        });
    }

  private:
    static HVD_COMPRESS_TILE std::int64_t at(std::int64_t tile, int round, int t) {
        return tile * kTile + (round * kThreads + t) * kWide;
    }
};

}  // namespace hvd_compress::cuda
