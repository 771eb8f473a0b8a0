#include "selection.hpp"

namespace hvd_compress::cpu {

std::atomic<std::int64_t> slow_selections{0};

namespace {

std::size_t take(std::size_t* end, std::int64_t bytes) {
    const std::size_t start = *end;
    *end += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    return start;
}

template <class T>
T* at(Workspace workspace, std::size_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(workspace.data) + offset);
}

constexpr int kBits = 12;  // of a digit
static_assert(kBins == 1 << kBits);

constexpr int kDigits[][2] = {{19, 12}, {7, 12}, {0, 7}};  // shift and bits of each digit of a key of 31 bits

}  // namespace

Layout::Layout(std::int64_t n, std::int64_t k) noexcept {
    n = std::max<std::int64_t>(n, 0);
    k = std::clamp<std::int64_t>(k, 0, n);
    const bool sampled = n >= kMinSampled;
    chunks = divided_up(n, kChunk);
    slices = std::clamp<std::int64_t>(divided_up(n, kSliceElements), 1, kMaxSlices);
    // More candidates than that: not worth setting apart.
    capacity = sampled ? std::min(n, 2 * k + n / 64) : 0;
    const std::int64_t room = sampled ? capacity + kSlack : 0;
    bytes = 0;
    table = take(&bytes, chunks * static_cast<std::int64_t>(sizeof(Row)));
    bins = take(&bytes, slices * (kBins + 1) * static_cast<std::int64_t>(sizeof(Count)));
    sample = take(&bytes, sampled ? kSampleBins * static_cast<std::int64_t>(sizeof(Count)) : 0);
    indices = take(&bytes, room * static_cast<std::int64_t>(sizeof(std::int32_t)));
    values = take(&bytes, room * static_cast<std::int64_t>(sizeof(float)));
    keys = take(&bytes, room * static_cast<std::int64_t>(sizeof(Key)));
}

Selection::Selection(std::int64_t n, std::int64_t k, Workspace workspace, std::int32_t* indices, void* values,
                     std::size_t value_bytes) noexcept
    : n_(n),
      k_(k),
      layout_(n, k),
      table_(at<Row>(workspace, layout_.table)),
      bins_(at<Count>(workspace, layout_.bins)),
      sample_(at<Count>(workspace, layout_.sample)),
      candidates_{at<std::int32_t>(workspace, layout_.indices), at<float>(workspace, layout_.values)},
      keys_(at<Key>(workspace, layout_.keys)),
      indices_(indices),
      values_(static_cast<char*>(values)),
      value_bytes_(value_bytes),
      kernels_(topk_kernels()) {}

Place Selection::place(std::int64_t chunk) const noexcept { return chunk_of(chunk, kChunk, n_); }

Candidates Selection::candidates_of(std::int64_t chunk) const noexcept {
    return {candidates_.indices + table_[chunk].first, candidates_.values + table_[chunk].first};
}

void Selection::add_slices(std::int64_t bins) noexcept {
    for (std::int64_t slice = 1; slice < layout_.slices; ++slice) {
        for (std::int64_t bin = 0; bin < bins; ++bin) bins_[bin] += bins_of(slice)[bin];
    }
}

// Down from the largest bin to the one that holds the element of rank *wanted, counted from 1; leaves in *wanted how
// many are still wanted of that bin.
Key Selection::walk(std::int64_t bins, std::int64_t* wanted) const noexcept {
    std::int64_t bin = bins - 1;
    while (bin > 0 && bins_[bin] < *wanted) *wanted -= bins_[bin--];
    return static_cast<Key>(bin);
}

void Selection::count_keys(Key low, int shift) noexcept {
    parallel_for(layout_.slices, [&](std::int64_t slice) {
        std::fill_n(bins_of(slice), kBins + 1, Count{0});
        const std::int64_t begin = key_count_ * slice / layout_.slices, end = key_count_ * (slice + 1) / layout_.slices;
        kernels_.count_keys(keys_ + begin, end - begin, low, shift, bins_of(slice));
    });
    add_slices(kBins + 1);
}

// The keys of all candidates, where those within the bracket do not reach.
void Selection::all_keys() noexcept {
    parallel_for(layout_.slices, [&](std::int64_t slice) {
        const std::int64_t end = found_ * (slice + 1) / layout_.slices;
        for (std::int64_t i = found_ * slice / layout_.slices; i < end; ++i) {
            keys_[i] = Traits<float>::key(candidates_.values[i]);
        }
    });
    key_count_ = found_;
    bracket_.high = Traits<float>::kInfinityKey + 2;
}

Threshold Selection::threshold_of_candidates() noexcept {
    if (found_ - key_count_ >= k_) all_keys();
    std::int64_t wanted = k_ - (found_ - key_count_);
    Key low = bracket_.low;
    int width = 0;
    while ((bracket_.high - 1 - low) >> width != 0) ++width;
    int shift = width;
    while (shift > 0) {
        const int bits = std::min(shift, kBits);
        shift -= bits;
        count_keys(low, shift);
        low += walk(std::int64_t{1} << bits, &wanted) << shift;
    }
    return {low, wanted};
}

// Fills in the table's last four columns.
template <class Rank>
void Selection::rank_chunks(Rank rank, Threshold threshold) noexcept {
    parallel_for(layout_.chunks,
                 [&](std::int64_t chunk) { rank(chunk, threshold.key, &table_[chunk].above, &table_[chunk].equal); });
    std::int64_t position = 0;
    for (std::int64_t chunk = 0; chunk < layout_.chunks; ++chunk) {
        Row& row = table_[chunk];
        row.position = position;
        row.ties = std::min(row.equal, threshold.ties);
        position += row.above + row.ties;
        threshold.ties -= row.ties;
    }
}

Status Selection::emit(TopkKernels::Emit emit, void* out) noexcept {
    if (k_ == 0) return Status::kOk;
    const Threshold threshold = threshold_of_candidates();
    rank_chunks(
        [&](std::int64_t chunk, Key key, std::int64_t* above, std::int64_t* equal) {
            kernels_.rank(candidates_of(chunk).values, table_[chunk].count, key, above, equal);
        },
        threshold);
    parallel_for(layout_.chunks, [&](std::int64_t chunk) {
        const Row row = table_[chunk];
        emit(candidates_of(chunk), row.count, threshold.key, row.ties, indices_ + row.position,
             values_ + row.position * static_cast<std::int64_t>(value_bytes_), out);
    });
    return Status::kOk;
}

Status Selection::by_digits(TopkKernels::CountDigit count, TopkKernels::RankRange rank, TopkKernels::Select select,
                            void* x) noexcept {
    ++slow_selections;
    Threshold threshold{0, k_};
    for (const auto& [shift, bits] : kDigits) {
        parallel_for(layout_.slices, [&, shift = shift, bits = bits](std::int64_t slice) {
            std::fill_n(bins_of(slice), kBins, Count{0});
            const Place slices{n_ * slice / layout_.slices, n_ * (slice + 1) / layout_.slices};
            count(x, slices, shift, bits, threshold.key, bins_of(slice));
        });
        add_slices(kBins);
        threshold.key = threshold.key << bits | walk(std::int64_t{1} << bits, &threshold.ties);
    }
    rank_chunks([&](std::int64_t chunk, Key key, std::int64_t* above,
                    std::int64_t* equal) { rank(x, place(chunk), key, above, equal); },
                threshold);
    std::atomic<std::int64_t> found{0};
    parallel_for(layout_.chunks, [&](std::int64_t chunk) {
        const Row row = table_[chunk];
        const std::int64_t limit = std::clamp<std::int64_t>(k_ - row.position, 0, row.above + row.ties);
        found += select(x, place(chunk), threshold.key, row.ties, limit, indices_ + row.position,
                        values_ + row.position * static_cast<std::int64_t>(value_bytes_));
    });
    return found == k_ ? Status::kOk : Status::kChangedMeanwhile;
}

}  // namespace hvd_compress::cpu
