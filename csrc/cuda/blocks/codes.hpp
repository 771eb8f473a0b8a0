// How the whole numbers of a group lie in memory, and which of them are a thread's.
//
// A thread has four neighbouring elements of each of the four parts, 16 elements long, of a group. So its codes are
// whole 32-bit words, and what is above the lowest byte of its numbers are whole bytes.
#pragma once

#include <type_traits>

#include "../quantize/kernels.hpp"
#include "hvd_compress/blocks.hpp"

namespace hvd_compress::cuda {

constexpr int kPart = 16, kParts = static_cast<int>(kBlockGroup) / kPart;
constexpr int kGroupThreads = kPart / kWide;
constexpr int kBlockThreads = 256;
constexpr int kBlockTile = kBlockThreads * kParts * kWide;
static_assert(kBlockTile % kMaxBlock == 0, "no block lies in two tiles");

// The elements of a thread.
struct Spot {
    std::int64_t group;
    int lane;  // its first element, of each part

    HVD_COMPRESS_TILE Spot(std::int64_t tile, int t)
        : group(tile * (kBlockTile / kBlockGroup) + t / kGroupThreads), lane(t % kGroupThreads * kWide) {}
    HVD_COMPRESS_TILE std::int64_t at(int part) const { return group * kBlockGroup + part * kPart + lane; }
};

template <bool whole>
HVD_COMPRESS_TILE std::uint32_t load_word(const std::uint8_t* own) {
    if constexpr (whole) {
        return *reinterpret_cast<const std::uint32_t*>(own);
    } else {
        return own[0] | own[1] << 8 | own[2] << 16 | static_cast<std::uint32_t>(own[3]) << 24;
    }
}

template <bool whole>
HVD_COMPRESS_TILE void store_word(std::uint8_t* own, std::uint32_t word) {
    if constexpr (whole) {
        *reinterpret_cast<std::uint32_t*>(own) = word;
    } else {
        for (int j = 0; j < kWide; ++j) own[j] = static_cast<std::uint8_t>(word >> 8 * j);
    }
}

// The codes of a thread: byte j of a word holds the j-th of its elements of one part or, above each other, of several.
template <int most>
struct CodeBits {
    static constexpr int kBits = block_group_bytes(most) / 8, kWords = kBits / 2;
    static constexpr std::uint32_t kMask = (1u << kBits) - 1;
    std::uint32_t word[kWords];

    static HVD_COMPRESS_TILE std::int64_t at(Spot spot, int w) {
        return spot.group * 8 * kBits + w * kPart + spot.lane;
    }
    static HVD_COMPRESS_TILE int shift(int part, int j) { return 8 * j + part / kWords * kBits; }

    HVD_COMPRESS_TILE void clear() {
        HVD_COMPRESS_UNROLL
        for (std::uint32_t& each : word) each = 0;
    }
    HVD_COMPRESS_TILE void put(std::int32_t q, int part, int j) {
        word[part % kWords] |= (static_cast<std::uint32_t>(q) & kMask) << shift(part, j);
    }
    // q as fp32: as the last bits of 2^23 its sum with 2^(kBits - 1) is exact, and no unit for conversions is needed.
    HVD_COMPRESS_TILE float get(int part, int j) const {
        constexpr std::uint32_t top = 1u << (kBits - 1);
        const std::uint32_t raised = (word[part % kWords] >> shift(part, j) & kMask) ^ top;
        return from_bits(to_bits(0x1p23f) | raised) - (0x1p23f + static_cast<float>(top));
    }

    template <bool whole>
    HVD_COMPRESS_TILE void load(const std::uint8_t* codes, Spot spot) {
        HVD_COMPRESS_UNROLL
        for (int w = 0; w < kWords; ++w) word[w] = load_word<whole>(codes + at(spot, w));
    }
    template <bool whole>
    HVD_COMPRESS_TILE void store(std::uint8_t* codes, Spot spot) const {
        HVD_COMPRESS_UNROLL
        for (int w = 0; w < kWords; ++w) store_word<whole>(codes + at(spot, w), word[w]);
    }
};

// The same in digits: number[j] holds element j of each of the four parts, a digit each.
template <int most>
struct CodeDigits {
    static constexpr int kBase = digit_base(most), kBits = bits_above_byte(most), kBytes = kWide * kBits / 8;
    std::uint32_t number[kWide];

    static HVD_COMPRESS_TILE constexpr std::uint32_t power(int part) {
        std::uint32_t found = 1;
        for (int k = 0; k < part; ++k) found *= kBase;
        return found;
    }
    static HVD_COMPRESS_TILE std::int64_t at(Spot spot) { return spot.group * block_group_bytes(most) + spot.lane; }
    static HVD_COMPRESS_TILE std::int64_t above_at(Spot spot) {
        return spot.group * block_group_bytes(most) + kPart + spot.lane / kWide * kBytes;
    }

    HVD_COMPRESS_TILE void clear() {  // of zeros
        HVD_COMPRESS_UNROLL
        for (std::uint32_t& each : number) each = most * (power(0) + power(1) + power(2) + power(3));
    }
    HVD_COMPRESS_TILE void put(std::int32_t q, int part, int j) {
        number[j] += static_cast<std::uint32_t>(q) * power(part);
    }
    HVD_COMPRESS_TILE float get(int part, int j) const {
        const std::uint32_t digit = number[j] / power(part) % kBase;
        return from_bits(to_bits(0x1p23f) | digit) - (0x1p23f + static_cast<float>(most));
    }

    template <bool whole>
    HVD_COMPRESS_TILE void load(const std::uint8_t* codes, Spot spot) {
        const std::uint32_t low = load_word<whole>(codes + at(spot));
        std::uint32_t above = 0;
        HVD_COMPRESS_UNROLL
        for (int k = 0; k < kBytes; ++k) above |= static_cast<std::uint32_t>(codes[above_at(spot) + k]) << 8 * k;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) {
            number[j] = (low >> 8 * j & 0xff) | (above >> kBits * j & ((1u << kBits) - 1)) << 8;
        }
    }
    template <bool whole>
    HVD_COMPRESS_TILE void store(std::uint8_t* codes, Spot spot) const {
        std::uint32_t low = 0, above = 0;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) {
            low |= (number[j] & 0xff) << 8 * j;
            above |= number[j] >> 8 << kBits * j;
        }
        store_word<whole>(codes + at(spot), low);
        HVD_COMPRESS_UNROLL
        for (int k = 0; k < kBytes; ++k) codes[above_at(spot) + k] = static_cast<std::uint8_t>(above >> 8 * k);
    }
};

template <int most>
using Codes = std::conditional_t<has_digits(most), CodeDigits<most>, CodeBits<most>>;

}  // namespace hvd_compress::cuda
