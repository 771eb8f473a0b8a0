// The pieces that loops over elements are given, and what they share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress::cpu {

using Key = std::uint32_t;    // of Traits<float>: values of 16 bits are compared as the fp32 that they are
using Count = std::uint32_t;  // enough for kMaxNumel

struct Place {
    std::int64_t begin, end;
};

inline std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// The `number`-th of the chunks of `size` elements that n elements make.
inline Place chunk_of(std::int64_t number, std::int64_t size, std::int64_t n) {
    return {number * size, (number + 1) * size < n ? (number + 1) * size : n};
}

inline constexpr int kLanes = 16;  // of a vector, at every level

// An `out` of its own is not read. Where it does not fit the caches anyway, it is written past them, which saves
// reading its lines from memory; vectors must then be aligned as lines are.
inline bool goes_past_caches(const void* out, const void* residual, const void* grad, std::size_t bytes) {
    constexpr std::size_t kLarge = std::size_t{8} << 20, kLine = 64;
    return out != residual && out != grad && bytes >= kLarge && reinterpret_cast<std::uintptr_t>(out) % kLine == 0;
}

}  // namespace hvd_compress::cpu
