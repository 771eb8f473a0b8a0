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
    static constexpr int kThreads = 256, kRounds = 4;
    using Elements = Tile<kThreads, kRounds>;
    struct Shared {};
    Source source;
    std::int32_t* finite;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            float v[kRounds][kWide];
            bool good = true;
            source.read(Elements{block.index}, t, v);
            source.write(Elements{block.index}, t, v);
            for_each_value(v, [&](float x, int, int) { good &= Traits<float>::key(x) < Traits<float>::kInfinityKey; });
            if (!good) store_same(finite, 0);
        });
    }
};

}  // namespace hvd_compress::cuda
