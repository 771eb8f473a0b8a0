// Block quantisation: a whole number within -most..most for each element, and a bf16 unit for each block of elements.
//
// Block b holds elements b * block to (b + 1) * block - 1; the last one may hold fewer. Its unit u is
//   kMax: max |v| / most, where most is 127, 7, 3, 2 or 1;
//   kTernary, for most = 1: the mean of those |v| that are above 0.7 * mean |v| (Li and Liu, "Ternary Weight Networks",
//     2016). Both sums are fp32: element i of a block goes to lane i % 16, what comes first is added first, and lanes
//     are added pairwise as in sum.hpp;
// rounded to bf16, to nearest even, or for kMax with a key up: what was cut from the largest would never be sent. Below
// 2^-126 it is 0; it is NaN, 0x7fc0, if an element is not finite, or if the unit would not be. Then, and where u is 0,
// every q of the block is 0.
//
// q, within -most..most, is
//   kMax without a key: v * (1 / u), rounded to nearest even;
//   kMax with a key: |v| * (1 / u) * 2^16, at most most * 2^16, cut to a whole number, plus 16 random bits, shifted
//     right by 16, with the sign of v: the expected value of q * u is v, to 2^-16 of a unit;
//   kTernary: the sign of v where |v| > 0.7 * mean |v|, else 0.
// q * u is exact in fp32, as u has 8 significant bits. With kMax and no key v - q * u is exact, too: both are multiples
// of the last place of v, or of a smaller one, and the difference is no larger than v.
//
// Codes are stored in groups of 64 elements, block_group_bytes(most) = m bytes each. With most = 127, 7 and 1 they are
// two's complement numbers of m / 8 bits: element j of a group lies in byte j % m, at bit j / m * (m / 8). With most =
// 3 and 2 the elements j, j + 16, j + 32 and j + 48 share a number of 12 or 10 bits: the sum of (q + most) * base^k, k
// from 0 to 3, base 8 or 5. Its lowest 8 bits are byte j; those above, h = 4 or 2 of them, follow these 16 bytes,
// at bit j * h. What is missing at the end is 0.
//
// Random bits are half of a word of Philox4x32-7 (quantize.hpp) with the counter (c, c >> 32, step, bucket): element j
// of group g takes word j / 16 of c = g / 2 * 16 + j % 16, its upper half where g is even, else its lower half.
#pragma once

#include "hvd_compress/quantize.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

constexpr std::int64_t kBlockGroup = 64;
constexpr std::int64_t kMaxBlock = 1024;
constexpr int kMaxBlockSources = 1024;

enum class BlockFit : int { kMax = 0, kTernary = 1 };

struct BlockFormat {
    int most;            // the largest q: 127, 7, 3, 2 or 1
    std::int64_t block;  // a power of two, kBlockGroup..kMaxBlock
    BlockFit fit;        // kTernary for most = 1 only
};

// The bytes of 64 codes.
HVD_COMPRESS_HD constexpr int block_group_bytes(int most) noexcept {
    return most == 127 ? 64 : most == 7 ? 32 : most == 3 ? 24 : most == 2 ? 20 : 16;
}

// Whether four elements share a number; its base, and its bits above the lowest 8.
HVD_COMPRESS_HD constexpr bool has_digits(int most) noexcept { return most == 3 || most == 2; }
HVD_COMPRESS_HD constexpr int digit_base(int most) noexcept { return most == 3 ? 8 : 5; }
HVD_COMPRESS_HD constexpr int bits_above_byte(int most) noexcept { return most == 3 ? 4 : 2; }

// What one rank sent of n elements: block_code_bytes() of codes, and block_count() units.
struct BlockCodes {
    const std::uint8_t* codes;
    const std::uint16_t* units;
};

HVD_COMPRESS_HD constexpr std::int64_t block_code_bytes(std::int64_t n, int most) noexcept {
    return (n / kBlockGroup + (n % kBlockGroup != 0)) * block_group_bytes(most);
}
HVD_COMPRESS_HD constexpr std::int64_t block_count(std::int64_t n, std::int64_t block) noexcept {
    return n / block + (n % block != 0);
}
HVD_COMPRESS_HD constexpr bool is_block_format(BlockFormat format) noexcept {
    const int m = format.most;
    const bool most = m == 127 || m == 7 || m == 3 || m == 2 || m == 1;
    const bool block = format.block >= kBlockGroup && format.block <= kMaxBlock && !(format.block & (format.block - 1));
    return most && block && (format.fit == BlockFit::kMax || (format.fit == BlockFit::kTernary && m == 1));
}

// A block's unit as it is stored, and what its elements are divided by. Where it does not send, every q is 0.
struct BlockUnit {
    float unit, inverse;
    std::uint16_t stored;
    bool sends;
};

HVD_COMPRESS_HD inline BlockUnit block_unit(float found, bool up) noexcept {
    BFloat16 rounded = from_float<BFloat16>(found);
    if (up && to_float(rounded) < found) ++rounded.bits;  // found has no sign: the next number, or infinity
    const float unit = to_float(rounded);
    const bool finite = Traits<float>::key(unit) < Traits<float>::kInfinityKey, sends = finite && unit >= 0x1p-126f;
    const std::uint16_t stored = sends ? rounded.bits : finite ? std::uint16_t{0} : std::uint16_t{0x7fc0};
    return {unit, 1.0f / unit, stored, sends};
}

// v = residual + grad in fp32; codes and units as above; out = v - q * u.
//
// residual and out are fp32, or both null: v = grad then, and what is lost is not kept. `key` is null for rounding to
// nearest. One pass: 12 bytes an fp32 element beside codes and units.
using BlockQuantize = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, BlockFormat format,
                             const RandomKey* key, std::uint8_t* codes, std::uint16_t* units, Stream stream) noexcept;

// out = weight * (sum of q * u over the sources, in their order), rounded to its dtype; *finite = 1 where every element
// of out is finite, else 0. There is at least one source.
using BlockSum = Status(const BlockCodes* sources, int count, std::int64_t n, BlockFormat format, float weight,
                        Array out, std::int32_t* finite, Stream stream) noexcept;

// v = sum in fp32 of own and q * u of the others, own being the `place`-th of count + 1 summands; codes and units of v
// as above; rest = v - q * u. rest is fp32, and may be own, or null. There may be no others.
using BlockSumQuantize = Status(ConstArray own, const BlockCodes* others, int count, int place, Array rest,
                                std::int64_t n, BlockFormat format, const RandomKey* key, std::uint8_t* codes,
                                std::uint16_t* units, Stream stream) noexcept;

namespace cpu {
BlockQuantize block_quantize;
BlockSum block_sum;
BlockSumQuantize block_sum_quantize;
}  // namespace cpu

namespace cuda {
BlockQuantize block_quantize;
BlockSum block_sum;
BlockSumQuantize block_sum_quantize;
}  // namespace cuda

}  // namespace hvd_compress
