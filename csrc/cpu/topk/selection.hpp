// One selection of the k largest: by a sample, and by digits where the sample was wrong.
//
//  sample      a few elements tell between which keys the threshold probably lies
//  collect     one pass over all elements sets those apart that lie above the lower of the two: the candidates
//  key_of_rank counts of the candidates' keys, digit by digit, give the k-th largest exactly
//  emit        what is selected is the result; the others go back to where they came from
//
// Elements are taken in chunks. Which thread takes which does not matter: a chunk's candidates are put wherever there
// is room, and the table says where.
#pragma once

#include <atomic>

#include "../pool/pool.hpp"
#include "../sample/sample.hpp"
#include "hvd_compress/types.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {

constexpr std::int64_t kMaxSlices = 16;  // that count side by side, each into bins of its own
constexpr std::int64_t kSliceElements = 65536;
constexpr std::int64_t kSliceKeys = 16384;   // of the bracket: clearing and adding a slice's bins takes as long
constexpr std::int64_t kMinSampled = 16384;  // fewer elements are not worth a sample

// The parts of the workspace, in bytes from its start.
struct Layout {
    std::int64_t chunks, slices, capacity;
    std::size_t table, bins, sample, indices, values, keys, bytes;

    Layout(std::int64_t n, std::int64_t k) noexcept;
};

// One chunk: its candidates, `count` of them from `first`; how many elements lie above the threshold or are equal to
// it; and where its part of the result begins, and how many of the equal ones are in it.
struct Row {
    std::int64_t first, count, above, equal, position, ties;
};

// How many selections had to count the digits of all keys, for tests.
extern std::atomic<std::int64_t> slow_selections;

// The loops for one pair of dtypes, and what they work on.
struct Passes {
    TopkKernels::Emit emit;
    void* out;  // where candidates that are not selected go back to; null where they have not left
    TopkKernels::CountDigit count;
    TopkKernels::RankRange rank;
    TopkKernels::Select select;
    void* x;  // (n), for the passes over all elements; what is selected leaves it where there is an `out`
    std::size_t value_bytes;
};

Passes passes_over(ConstArray x) noexcept;  // x stays as it is
Passes passes_from(Array out) noexcept;     // zeros take the places of what is selected; selected as fp32

// Whether enough vectors hold a candidate that to skip the others costs more, in branches predicted wrongly, than it
// saves: from one vector in eight on.
inline bool many(std::int64_t n, std::int64_t k) { return k > n / 200; }

class Selection {
  public:
    // Finds the k largest at least. The result goes to `indices` and `values`.
    Selection(std::int64_t n, std::int64_t k, Workspace workspace, std::int32_t* indices, void* values,
              const Passes& passes) noexcept;

    // Sets candidates apart. Where they do not hold the k largest they are put back, and all elements are looked at
    // from now on.
    template <class ValueAt, class Prefetch, class Collect, class PutBack>
    void by_sample(ValueAt value_at, Prefetch prefetch, Collect collect, PutBack put_back) noexcept;

    // The key of the element of rank 1 to k, counted from the largest; where nothing reliable was sampled in several
    // passes. Asked for once.
    Key key_of_rank(std::int64_t rank) noexcept;

    // Hands out `wanted` elements of a range that has as many.
    Status emit(Range range, std::int64_t wanted) noexcept;

    // The `wanted` largest, at most k.
    Status emit_largest(std::int64_t wanted) noexcept;

    Candidates candidates_of(std::int64_t chunk) const noexcept;

    // Before a range is emitted that reaches below the candidates.
    template <class PutBack>
    void reach(Range range, PutBack put_back) noexcept {
        if (!sampled_ || range.last >= bracket_.low) return;
        put_all_back(put_back);
        sampled_ = false;
    }

  private:
    static constexpr Key kUnreachable = 0x80000000u;  // above every key, that of no NaN excepted

    template <class PutBack>
    void put_all_back(PutBack put_back) noexcept {
        parallel_for(layout_.chunks, [&](std::int64_t chunk) { put_back(candidates_of(chunk), table_[chunk].count); });
    }
    Place place(std::int64_t chunk) const noexcept;
    Key walk(std::int64_t bins, std::int64_t* wanted) const noexcept;
    void add_slices(std::int64_t slices, std::int64_t bins) noexcept;
    Key rank_of_candidates(std::int64_t rank) noexcept;
    Key rank_of_all(std::int64_t rank) noexcept;
    Status emit_candidates(Range range, std::int64_t wanted) noexcept;
    Status emit_from_all(Range range, std::int64_t wanted) noexcept;
    void count_keys(Key low, int shift) noexcept;
    void all_keys() noexcept;
    template <class Rank>
    void rank_chunks(Rank rank, Range range, std::int64_t wanted) noexcept;
    Count* bins_of(std::int64_t slice) const noexcept { return bins_ + slice * kBins; }

    std::int64_t n_, k_;
    Layout layout_;
    Row* table_;
    Count* bins_;
    Count* sample_;
    Candidates candidates_;
    Key* keys_;  // of the candidates below the bracket's upper end, in any order
    std::int64_t key_count_ = 0, found_ = 0;
    std::int32_t* indices_;
    char* values_;
    Passes passes_;
    Bracket bracket_{};
    bool sampled_ = false;  // whether the candidates hold the k largest
    const TopkKernels& kernels_;
};

template <class ValueAt, class Prefetch, class Collect, class PutBack>
void Selection::by_sample(ValueAt value_at, Prefetch prefetch, Collect collect, PutBack put_back) noexcept {
    if (n_ >= kMinSampled && k_ > 0 && k_ < n_) {
        bracket_ = sample_bracket(n_, k_, value_at, prefetch, sample_);
    }
    const Key low = bracket_.low != 0 ? bracket_.low : kUnreachable;
    std::atomic<std::int64_t> end{0}, keys_end{0};
    parallel_for(layout_.chunks, [&](std::int64_t chunk) {
        alignas(64) std::int32_t indices[kChunk + kSlack];
        alignas(64) float values[kChunk + kSlack];
        alignas(64) Key keys[kChunk + kSlack];
        const std::int64_t count = collect(place(chunk), low, Candidates{indices, values});
        const std::int64_t first = end.fetch_add(count, std::memory_order_relaxed);
        table_[chunk] = {};
        if (first + count > layout_.capacity) {
            put_back(Candidates{indices, values}, count);
            return;
        }
        table_[chunk].first = first;
        table_[chunk].count = count;
        std::copy_n(indices, count, candidates_.indices + first);
        std::copy_n(values, count, candidates_.values + first);
        const std::int64_t below = kernels_.keys_below(values, count, bracket_.high, keys);
        std::copy_n(keys, below, keys_ + keys_end.fetch_add(below, std::memory_order_relaxed));
    });
    found_ = end.load(std::memory_order_relaxed);
    key_count_ = keys_end.load(std::memory_order_relaxed);
    sampled_ = k_ == 0 || (found_ >= k_ && found_ <= layout_.capacity);
    if (!sampled_) put_all_back(put_back);
}

}  // namespace hvd_compress::cpu
