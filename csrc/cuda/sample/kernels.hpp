// Where the threshold of the k largest probably lies, from a sample of the elements; and how one finds an element of
// some rank by counts.
#pragma once

#include "../tile.hpp"
#include "hvd_compress/sample.hpp"

namespace hvd_compress::cuda {

using Key = std::uint32_t;

// Counts the sampled elements by their keys' upper bits, but for zeros.
template <class Source>
struct Sample {
    static constexpr int kThreads = 256;
    struct Shared {};
    Source source;
    std::int64_t blocks, stride;
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t number = block.index * kThreads + t;  // of four elements
            const std::int64_t of = number / (kSampledBlock / kWide);
            if (of >= blocks) return;
            const std::int64_t first = sampled_block(of, stride) + number % (kSampledBlock / kWide) * kWide;
            float v[1][kWide];
            source.read(Tile<1, 1>{first / kWide}, 0, v);
            for_each_value(v, [&](float x, int, int) {
                const Key bin = Traits<float>::key(x) >> kSampleShift;
                if (bin != 0) atomic_add(&bins[bin], 1u);  // nobody asks for zeros, which may be many
            });
        });
    }
};

constexpr int kWalkThreads = 1024;

// The bin, from the last one down, that holds the element of rank `wanted`, counted from 1, and how many lie in the
// bins above it; -1 if there are not as many. The number of bins is a multiple of that of threads.
struct Walked {
    std::int64_t bin, above;
};

struct WalkShared {
    std::uint32_t scratch[32];
    Walked result;
};

template <int threads, class B>
HVD_COMPRESS_TILE Walked walk(const B& block, WalkShared& shared, const std::uint32_t* bins, std::int64_t bin_count,
                              std::int64_t wanted) {
    const std::int64_t each = bin_count / threads;
    typename B::template Each<std::uint32_t> own, before;
    block.each([&](int t) {
        own[t] = 0;
        for (std::int64_t i = 0; i < each; ++i) own[t] += bins[bin_count - 1 - t * each - i];
        before[t] = own[t];
        if (t == 0) shared.result = {-1, 0};
    });
    block.exclusive_sum(before, shared.scratch);  // a sync() of the result, too
    block.each([&](int t) {
        std::int64_t above = before[t];
        if (wanted <= above || wanted > above + own[t]) return;
        std::int64_t bin = bin_count - 1 - t * each;
        while (above + bins[bin] < wanted) above += bins[bin--];
        shared.result = {bin, above};
    });
    block.sync();
    return shared.result;
}

// *low becomes the first key of the bin that holds the sampled element of rank `wanted`; it stays where there is none,
// or where that is the bin of zeros.
struct ChooseLow {
    static constexpr int kThreads = kWalkThreads;
    using Shared = WalkShared;
    Key* low;
    const std::uint32_t* sample;
    std::int64_t wanted;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Walked found = walk<kThreads>(block, shared, sample, kSampleBins, wanted);
        block.each([&](int t) {
            if (t == 0 && found.bin > 0) *low = static_cast<Key>(found.bin) << kSampleShift;
        });
    }
};

}  // namespace hvd_compress::cuda
