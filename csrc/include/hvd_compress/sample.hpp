// Which elements a sample holds from which the threshold of the k largest is guessed. The same on every device.
#pragma once

#include <cmath>

#include "hvd_compress/numeric.hpp"

namespace hvd_compress {

constexpr std::int64_t kSampledBlock = 16;  // elements that are looked at together: a cache line of fp32
constexpr std::int64_t kMaxBlocks = 4096;   // 65,536 elements
constexpr std::int64_t kElementsPerBlock = 256;

// A few elements are sampled more densely than many: of a block's time most goes into finding its page, and a small
// sample leaves more candidates. Their sum is least near these.
constexpr std::int64_t kDenseBlocks = 256;
constexpr std::int64_t kElementsPerSparseBlock = 2048;
constexpr int kSampleShift = 17;  // 64 bins to a factor of two
constexpr std::int64_t kSampleBins = std::int64_t{1} << (31 - kSampleShift);

HVD_COMPRESS_HD inline std::int64_t sample_blocks(std::int64_t n) {
    const std::int64_t dense = n / kElementsPerBlock < kDenseBlocks ? n / kElementsPerBlock : kDenseBlocks;
    const std::int64_t sparse = n / kElementsPerSparseBlock < kMaxBlocks ? n / kElementsPerSparseBlock : kMaxBlocks;
    return dense > sparse ? dense : sparse;
}

// Candidates for the k largest of n for whom there is room: more are not worth setting apart, and of few elements a
// sample guesses worse.
HVD_COMPRESS_HD inline std::int64_t candidates_room(std::int64_t n, std::int64_t k) {
    const std::int64_t room = 2 * k + n / 64 + 1024;
    return room < n ? room : n;
}

// Spreads its argument over all 32 bits (the finaliser of MurmurHash3), so that no pattern in memory meets the
// sample's.
HVD_COMPRESS_HD inline std::uint32_t scattered(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// Where the block starts: at a multiple of kSampledBlock, so that it is one cache line where x begins with one.
HVD_COMPRESS_HD inline std::int64_t sampled_block(std::int64_t block, std::int64_t stride) {
    const std::int64_t shift = scattered(static_cast<std::uint32_t>(block)) % (stride - kSampledBlock);
    return (block * stride + shift) / kSampledBlock * kSampledBlock;
}

// The sample holds about `expected` of the k largest. Neighbours are alike, so that it is worth less than its size:
// twice the four standard deviations that would do for independent elements.
inline double sample_margin(double expected) { return 8.0 * std::sqrt(expected) + 8.0; }

}  // namespace hvd_compress
