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

Passes passes_over(ConstArray x) noexcept {
    const TopkKernels& kernels = topk_kernels();
    const int type = static_cast<int>(x.dtype);
    const std::size_t bytes = x.dtype == DType::kFloat32 ? sizeof(float) : sizeof(Half);
    return {
        kernels.emit[type],        nullptr, kernels.count_digit[type], kernels.rank_range[type], kernels.select[type],
        const_cast<void*>(x.data), bytes};
}

Passes passes_from(Array out) noexcept {
    const TopkKernels& kernels = topk_kernels();
    const int type = static_cast<int>(out.dtype);
    return {kernels.emit_and_restore[type],
            out.data,
            kernels.count_digit[type],
            kernels.rank_range[type],
            kernels.select_and_zero[type],
            out.data,
            sizeof(float)};
}

Layout::Layout(std::int64_t n, std::int64_t k) noexcept {
    n = std::max<std::int64_t>(n, 0);
    k = std::clamp<std::int64_t>(k, 0, n);
    const bool sampled = n >= kMinSampled;
    chunks = divided_up(n, kChunk);
    slices = std::clamp<std::int64_t>(divided_up(n, kSliceElements), 1, kMaxSlices);
    capacity = sampled ? candidates_room(n, k) : 0;
    const std::int64_t room = sampled ? capacity + kSlack : 0;
    bytes = 0;
    table = take(&bytes, chunks * static_cast<std::int64_t>(sizeof(Row)));
    bins = take(&bytes, slices * kBins * static_cast<std::int64_t>(sizeof(Count)));
    sample = take(&bytes, sampled ? kAllSampleBins * static_cast<std::int64_t>(sizeof(Count)) : 0);
    indices = take(&bytes, room * static_cast<std::int64_t>(sizeof(std::int32_t)));
    values = take(&bytes, room * static_cast<std::int64_t>(sizeof(float)));
    keys = take(&bytes, room * static_cast<std::int64_t>(sizeof(Key)));
}

Selection::Selection(std::int64_t n, std::int64_t k, Workspace workspace, std::int32_t* indices, void* values,
                     const Passes& passes) noexcept
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
      passes_(passes),
      kernels_(topk_kernels()) {}

Place Selection::place(std::int64_t chunk) const noexcept { return chunk_of(chunk, kChunk, n_); }

Candidates Selection::candidates_of(std::int64_t chunk) const noexcept {
    return {candidates_.indices + table_[chunk].first, candidates_.values + table_[chunk].first};
}

void Selection::add_slices(std::int64_t slices, std::int64_t bins) noexcept {
    for (std::int64_t slice = 1; slice < slices; ++slice) {
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
    const std::int64_t slices = std::clamp<std::int64_t>(key_count_ / kSliceKeys, 1, layout_.slices);
    parallel_for(slices, [&](std::int64_t slice) {
        std::fill_n(bins_of(slice), kBins, Count{0});
        const std::int64_t begin = key_count_ * slice / slices, end = key_count_ * (slice + 1) / slices;
        kernels_.count_keys(keys_ + begin, end - begin, low, shift, bins_of(slice));
    });
    add_slices(slices, kBins);
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

Key Selection::rank_of_candidates(std::int64_t rank) noexcept {
    if (found_ - key_count_ >= rank) all_keys();
    std::int64_t wanted = rank - (found_ - key_count_);
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
    return low;
}

Key Selection::rank_of_all(std::int64_t rank) noexcept {
    ++slow_selections;
    Key key = 0;
    for (const auto& [shift, bits] : kDigits) {
        parallel_for(layout_.slices, [&, shift = shift, bits = bits](std::int64_t slice) {
            std::fill_n(bins_of(slice), kBins, Count{0});
            const Place slices{n_ * slice / layout_.slices, n_ * (slice + 1) / layout_.slices};
            passes_.count(passes_.x, slices, shift, bits, key, bins_of(slice));
        });
        add_slices(layout_.slices, kBins);
        key = key << bits | walk(std::int64_t{1} << bits, &rank);
    }
    return key;
}

Key Selection::key_of_rank(std::int64_t rank) noexcept {
    return sampled_ ? rank_of_candidates(rank) : rank_of_all(rank);
}

// Fills in the table's last four columns.
template <class Rank>
void Selection::rank_chunks(Rank rank, Range range, std::int64_t wanted) noexcept {
    parallel_for(layout_.chunks,
                 [&](std::int64_t chunk) { rank(chunk, range, &table_[chunk].above, &table_[chunk].equal); });
    std::int64_t ties = wanted;
    for (std::int64_t chunk = 0; chunk < layout_.chunks; ++chunk) ties -= table_[chunk].above;
    std::int64_t position = 0;
    for (std::int64_t chunk = 0; chunk < layout_.chunks; ++chunk) {
        Row& row = table_[chunk];
        row.position = position;
        row.ties = std::clamp<std::int64_t>(ties, 0, row.equal);
        position += row.above + row.ties;
        ties -= row.ties;
    }
}

Status Selection::emit_candidates(Range range, std::int64_t wanted) noexcept {
    rank_chunks(
        [&](std::int64_t chunk, Range of, std::int64_t* above, std::int64_t* equal) {
            kernels_.rank(candidates_of(chunk).values, table_[chunk].count, of, above, equal);
        },
        range, wanted);
    parallel_for(layout_.chunks, [&](std::int64_t chunk) {
        const Row row = table_[chunk];
        passes_.emit(candidates_of(chunk), row.count, range, row.ties, indices_ + row.position,
                     values_ + row.position * static_cast<std::int64_t>(passes_.value_bytes), passes_.out);
    });
    return Status::kOk;
}

Status Selection::emit_from_all(Range range, std::int64_t wanted) noexcept {
    rank_chunks([&](std::int64_t chunk, Range of, std::int64_t* above,
                    std::int64_t* equal) { passes_.rank(passes_.x, place(chunk), of, above, equal); },
                range, wanted);
    std::atomic<std::int64_t> found{0};
    parallel_for(layout_.chunks, [&](std::int64_t chunk) {
        const Row row = table_[chunk];
        const std::int64_t limit = std::clamp<std::int64_t>(wanted - row.position, 0, row.above + row.ties);
        found += passes_.select(passes_.x, place(chunk), range, row.ties, limit, indices_ + row.position,
                                values_ + row.position * static_cast<std::int64_t>(passes_.value_bytes));
    });
    return found == wanted ? Status::kOk : Status::kChangedMeanwhile;
}

Status Selection::emit(Range range, std::int64_t wanted) noexcept {
    if (wanted == 0) return Status::kOk;
    return sampled_ ? emit_candidates(range, wanted) : emit_from_all(range, wanted);
}

Status Selection::emit_largest(std::int64_t wanted) noexcept {
    if (wanted == 0) return Status::kOk;
    const Key last = key_of_rank(wanted);
    // The key that only keys above the last one reach; those of NaN, which are one key, have many in a vector.
    return emit({last > Traits<float>::kInfinityKey ? kUnreachable : last + 1, last}, wanted);
}

}  // namespace hvd_compress::cpu
