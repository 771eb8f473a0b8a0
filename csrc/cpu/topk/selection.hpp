// One selection of the k largest: by a sample, and by digits where the sample was wrong.
//
//  sample      a few elements tell between which keys the threshold probably lies
//  collect     one pass over all elements sets those apart that lie above the lower of the two: the candidates
//  threshold   counts of the candidates' keys, digit by digit, give the k-th largest exactly
//  emit        those above it are the result; the others go back to where they came from
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

struct Threshold {
    Key key;
    std::int64_t ties;  // how many of those equal to `key` are selected; all above it are
};

class Selection {
  public:
    // The result goes to indices[0..k) and values[0..k).
    Selection(std::int64_t n, std::int64_t k, Workspace workspace, std::int32_t* indices, void* values,
              std::size_t value_bytes) noexcept;

    // Returns whether the candidates hold the k largest. If not, all elements have been collected from with an
    // unreachable threshold, or are put back, and by_digits() is left.
    template <class ValueAt, class Prefetch, class Collect, class PutBack>
    bool by_sample(ValueAt value_at, Prefetch prefetch, Collect collect, PutBack put_back) noexcept;

    // Finds the threshold among the candidates and hands out the result; others go back to `out`, unless it is null.
    Status emit(TopkKernels::Emit emit, void* out) noexcept;

    // Finds the threshold in x (n) itself, in several passes.
    Status by_digits(TopkKernels::CountDigit count, TopkKernels::RankRange rank, TopkKernels::Select select,
                     void* x) noexcept;

    Candidates candidates_of(std::int64_t chunk) const noexcept;

  private:
    static constexpr Key kUnreachable = 0x80000000u;  // above every key, that of no NaN excepted

    Place place(std::int64_t chunk) const noexcept;
    Key walk(std::int64_t bins, std::int64_t* wanted) const noexcept;
    void add_slices(std::int64_t bins) noexcept;
    Threshold threshold_of_candidates() noexcept;
    void count_keys(Key low, int shift) noexcept;
    void all_keys() noexcept;
    template <class Rank>
    void rank_chunks(Rank rank, Threshold threshold) noexcept;
    Count* bins_of(std::int64_t slice) const noexcept { return bins_ + slice * (kBins + 1); }

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
    std::size_t value_bytes_;
    Bracket bracket_{};
    const TopkKernels& kernels_;
};

template <class ValueAt, class Prefetch, class Collect, class PutBack>
bool Selection::by_sample(ValueAt value_at, Prefetch prefetch, Collect collect, PutBack put_back) noexcept {
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
    if (k_ == 0 || (found_ >= k_ && found_ <= layout_.capacity)) return true;
    parallel_for(layout_.chunks, [&](std::int64_t chunk) { put_back(candidates_of(chunk), table_[chunk].count); });
    return false;
}

}  // namespace hvd_compress::cpu
