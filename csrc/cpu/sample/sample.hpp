// Where the threshold of the k largest probably lies, from a sample of the elements.
#pragma once

#include <algorithm>

#include "../isa/types.hpp"
#include "../pool/pool.hpp"
#include "hvd_compress/numeric.hpp"
#include "hvd_compress/sample.hpp"

namespace hvd_compress::cpu {

// Keys that are likely to have the k-th largest between them. low = 0: the sample does not tell.
struct Bracket {
    Key low, high;
};

// Blocks of a slice: for fewer, clearing bins of its own takes as long as a part's work.
constexpr std::int64_t kBlocksPerSampleSlice = 512;
constexpr std::int64_t kMaxSampleSlices = 4;
constexpr std::int64_t kAllSampleBins = kMaxSampleSlices * kSampleBins;

// The same for the same n, k and values. `bins` (kAllSampleBins) is scratch memory. n is at least kElementsPerBlock.
// prefetch(i) asks for the memory of element i.
template <class ValueAt, class Prefetch>
Bracket sample_bracket(std::int64_t n, std::int64_t k, ValueAt value_at, Prefetch prefetch, Count* bins) {
    constexpr std::int64_t kAhead = 16;  // blocks: the memory of that many is under way at once
    const std::int64_t blocks = sample_blocks(n), stride = n / blocks;
    const std::int64_t slices = std::clamp<std::int64_t>(blocks / kBlocksPerSampleSlice, 1, kMaxSampleSlices);
    parallel_for(slices, [&](std::int64_t slice) {
        Count* own = bins + slice * kSampleBins;
        std::fill_n(own, kSampleBins, Count{0});
        const std::int64_t end = blocks * (slice + 1) / slices;
        for (std::int64_t block = blocks * slice / slices; block < end; ++block) {
            prefetch(sampled_block(std::min(block + kAhead, end - 1), stride));
            const std::int64_t start = sampled_block(block, stride);
            for (std::int64_t i = start; i < start + kSampledBlock; ++i)
                ++own[Traits<float>::key(value_at(i)) >> kSampleShift];
        }
    });
    const double expected =
        static_cast<double>(blocks * kSampledBlock) * static_cast<double>(k) / static_cast<double>(n);
    const double margin = sample_margin(expected);
    Key low = 0, high = Traits<float>::kInfinityKey + 1;
    std::int64_t seen = 0;
    for (std::int64_t bin = kSampleBins - 1; bin >= 0; --bin) {
        for (std::int64_t slice = 0; slice < slices; ++slice) seen += bins[slice * kSampleBins + bin];
        if (static_cast<double>(seen) <= expected - margin) high = static_cast<Key>(bin) << kSampleShift;
        if (static_cast<double>(seen) >= expected + margin) {
            low = static_cast<Key>(bin) << kSampleShift;
            break;
        }
    }
    // The bin of Inf holds NaN, too, which in a vector have many keys: none of them may count as within the bracket.
    return {low, std::min(high, Traits<float>::kInfinityKey + 1)};
}

}  // namespace hvd_compress::cpu
