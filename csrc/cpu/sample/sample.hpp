// Where the threshold of the k largest probably lies, from a sample of the elements.
#pragma once

#include <algorithm>
#include <cmath>

#include "../isa/types.hpp"
#include "hvd_compress/numeric.hpp"

namespace hvd_compress::cpu {

// Keys that are likely to have the k-th largest between them. low = 0: the sample does not tell.
struct Bracket {
    Key low, high;
};

constexpr std::int64_t kBlock = 16;        // elements that are looked at together: a cache line of fp32
constexpr std::int64_t kMaxBlocks = 4096;  // 65,536 elements
constexpr std::int64_t kElementsPerBlock = 256;
constexpr int kSampleShift = 17;  // 64 bins to a factor of two
constexpr std::int64_t kSampleBins = std::int64_t{1} << (31 - kSampleShift);

inline std::int64_t sample_blocks(std::int64_t n) { return std::min(n / kElementsPerBlock, kMaxBlocks); }

// Spreads its argument over all 32 bits (the finaliser of MurmurHash3), so that no pattern in memory meets the
// sample's.
inline std::uint32_t scattered(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// Where the block starts: at a multiple of kBlock, so that it is one cache line where x begins with one.
inline std::int64_t sampled_block(std::int64_t block, std::int64_t stride) {
    const std::int64_t shift = scattered(static_cast<std::uint32_t>(block)) % (stride - kBlock);
    return (block * stride + shift) / kBlock * kBlock;
}

// The same for the same n, k and values. `bins` (kSampleBins) is scratch memory. n is at least kElementsPerBlock.
// prefetch(i) asks for the memory of element i.
template <class ValueAt, class Prefetch>
Bracket sample_bracket(std::int64_t n, std::int64_t k, ValueAt value_at, Prefetch prefetch, Count* bins) {
    constexpr std::int64_t kAhead = 16;  // blocks: the memory of that many is under way at once
    std::fill_n(bins, kSampleBins, Count{0});
    const std::int64_t blocks = sample_blocks(n), stride = n / blocks;
    for (std::int64_t block = 0; block < blocks; ++block) {
        prefetch(sampled_block(std::min(block + kAhead, blocks - 1), stride));
        const std::int64_t start = sampled_block(block, stride);
        for (std::int64_t i = start; i < start + kBlock; ++i) ++bins[Traits<float>::key(value_at(i)) >> kSampleShift];
    }
    // Neighbours are alike, so that the sample is worth less than its size: twice the four standard deviations that
    // would do for independent elements.
    const double expected = static_cast<double>(blocks * kBlock) * static_cast<double>(k) / static_cast<double>(n);
    const double margin = 8.0 * std::sqrt(expected) + 8.0;
    Key low = 0, high = Traits<float>::kInfinityKey + 1;
    double seen = 0.0;
    for (std::int64_t bin = kSampleBins - 1; bin >= 0; --bin) {
        seen += bins[bin];
        if (seen <= expected - margin) high = static_cast<Key>(bin) << kSampleShift;
        if (seen >= expected + margin) {
            low = static_cast<Key>(bin) << kSampleShift;
            break;
        }
    }
    // The bin of Inf holds NaN, too, which in a vector have many keys: none of them may count as within the bracket.
    return {low, std::min(high, Traits<float>::kInfinityKey + 1)};
}

}  // namespace hvd_compress::cpu
