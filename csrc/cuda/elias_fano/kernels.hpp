// Elias-Fano code: a thread an index sets its bits; back, tiles count their ones, are placed, and hand them out.
#pragma once

#include "../scatter/kernels.hpp"
#include "../threshold/kernels.hpp"
#include "hvd_compress/elias_fano.hpp"

namespace hvd_compress::cuda {

constexpr int kCodeThreads = 256;
constexpr int kCodeWords = 4;  // of the high words, that a thread reads
constexpr std::int64_t kCodeTile = kCodeThreads * kCodeWords;

struct ClearWords {
    static constexpr int kThreads = kCodeThreads;
    struct Shared {};
    std::uint32_t* words;
    std::int64_t count;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t i = block.index * kThreads + t;
            if (i < count) words[i] = 0;
        });
    }
};

// The words are 0 before.
struct SetBits {
    static constexpr int kThreads = kCodeThreads;
    struct Shared {};
    const std::int32_t* indices;
    std::int64_t count, n;
    EliasFano code;
    std::uint32_t* words;
    Fault fault;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t i = block.index * kThreads + t;
            if (i >= count) return;
            if (!is_good(indices, i, n, true)) return note(fault, 0, i);
            const std::int64_t index = indices[i];
            const std::int64_t bit = (index >> code.low_bits) + i, at = i * code.low_bits, shift = at % 32;
            atomic_or(words + bit / 32, std::uint32_t{1} << bit % 32);
            if (code.low_bits == 0) return;
            const std::uint32_t low = static_cast<std::uint32_t>(index) & ((std::uint32_t{1} << code.low_bits) - 1);
            std::uint32_t* const low_words = words + code.high_words + at / 32;
            atomic_or(low_words, low << shift);
            if (shift + code.low_bits > 32) atomic_or(low_words + 1, low >> (32 - shift));
        });
    }
};

struct CountOnes {
    static constexpr int kThreads = kCodeThreads;
    struct Shared {
        std::uint32_t scratch[32];
    };
    const std::uint32_t* words;
    std::int64_t high_words;
    Count* rows;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            sums[t] = 0;
            for (int j = 0; j < kCodeWords; ++j) {
                const std::int64_t word = block.index * kCodeTile + t * kCodeWords + j;
                if (word < high_words) sums[t] += static_cast<std::uint32_t>(ones(words[word]));
            }
        });
        const std::uint32_t total = block.exclusive_sum(sums, shared.scratch);
        block.each([&](int t) {
            if (t == 0) rows[block.index] = total;
        });
    }
};

// Tile by tile of the high words. The high words have more bits than there are indices: so each bit also stands for the
// index of its number, which becomes -1 where there are too few ones.
struct EmitIndices {
    static constexpr int kThreads = kCodeThreads;
    using Shared = CountOnes::Shared;
    const std::uint32_t* words;
    std::int64_t count, n;
    EliasFano code;
    const Count* rows;
    const std::int64_t* total;
    std::int32_t* indices;
    Fault fault;

    HVD_COMPRESS_TILE std::int64_t low(std::int64_t i) const {
        if (code.low_bits == 0) return 0;
        const std::int64_t at = i * code.low_bits, shift = at % 32;
        const std::uint32_t* const low_words = words + code.high_words + at / 32;
        std::uint64_t found = low_words[0];
        if (shift + code.low_bits > 32) found |= static_cast<std::uint64_t>(low_words[1]) << 32;
        return static_cast<std::int64_t>(found >> shift & ((std::uint64_t{1} << code.low_bits) - 1));
    }

    // The index of the i-th one, which is this bit; -1 where it cannot be.
    HVD_COMPRESS_TILE std::int64_t index_of(std::int64_t bit, std::int64_t i) const {
        const std::int64_t own = low(i), index = (bit - i) << code.low_bits | own;
        const bool same_high = i > 0 && bit > 0 && (words[(bit - 1) / 32] >> (bit - 1) % 32 & 1u) != 0;
        return index >= n || (same_high && low(i - 1) >= own) ? -1 : index;
    }

    HVD_COMPRESS_TILE void emit(std::int64_t word, std::int64_t first) const {
        std::uint32_t bits = words[word];
        for (std::int64_t i = first; bits != 0 && i < count; bits &= bits - 1, ++i) {
            const std::int64_t index = index_of(32 * word + ones((bits & (~bits + 1)) - 1), i);
            indices[i] = static_cast<std::int32_t>(index);
            if (index < 0) note(fault, 0, i);
        }
    }

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            sums[t] = 0;
            for (int j = 0; j < kCodeWords; ++j) {
                const std::int64_t word = block.index * kCodeTile + t * kCodeWords + j;
                if (word < code.high_words) sums[t] += static_cast<std::uint32_t>(ones(words[word]));
            }
        });
        block.exclusive_sum(sums, shared.scratch);
        const std::int64_t first = static_cast<std::int64_t>(rows[block.index]), found = *total;
        block.each([&](int t) {
            std::int64_t i = first + sums[t];
            for (int j = 0; j < kCodeWords; ++j) {
                const std::int64_t word = block.index * kCodeTile + t * kCodeWords + j;
                if (word >= code.high_words) break;
                emit(word, i);
                i += ones(words[word]);
            }
            for (std::int64_t j = block.index * 32 * kCodeTile + t; j < (block.index + 1) * 32 * kCodeTile && j < count;
                 j += kThreads) {
                if (j >= found) indices[j] = -1;
            }
            if (block.index == 0 && t == 0 && found != count) note(fault, 0, found < count ? found : count);
        });
    }
};

}  // namespace hvd_compress::cuda
