// Loops over the blocks of sum.hpp, divided among threads.
#pragma once

#include <algorithm>

#include "../isa/types.hpp"
#include "hvd_compress/sum.hpp"
#include "pool.hpp"

namespace hvd_compress::cpu {

inline constexpr std::int64_t kSumChunk = 8 * kSumBlock;  // elements that a thread takes in turn

inline std::size_t sums_bytes(std::int64_t n) {
    return n > 0 ? static_cast<std::size_t>(divided_up(n, kSumBlock)) * sizeof(double) : 0;
}

// sums[b] = sum_of(block b), in any order.
template <class SumOf>
void for_each_sum_block(std::int64_t n, double* sums, const SumOf& sum_of) {
    parallel_for(divided_up(n, kSumChunk), [&](std::int64_t chunk) {
        const auto [begin, end] = chunk_of(chunk, kSumChunk, n);
        for (std::int64_t start = begin; start < end; start += kSumBlock) {
            sums[start / kSumBlock] = sum_of(Place{start, std::min(start + kSumBlock, end)});
        }
    });
}

// body(chunk), from the last one on: what a pass before this one wrote last may still be in a cache.
template <class Body>
void for_each_chunk_backwards(std::int64_t n, const Body& body) {
    const std::int64_t chunks = divided_up(n, kSumChunk);
    parallel_for(chunks, [&](std::int64_t part) { body(chunk_of(chunks - 1 - part, kSumChunk, n)); });
}

}  // namespace hvd_compress::cpu
