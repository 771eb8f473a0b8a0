#include "unique_rows.hpp"

#include <algorithm>

#include "row_table.hpp"

namespace hvd_compress::embedding {
namespace {

constexpr std::int64_t kAhead = 16;  // ids whose places are on their way from memory
constexpr int kSmallestBits = 10;

}  // namespace

void UniqueRows::reserve(std::int64_t count) {
    int bits = kSmallestBits;
    while ((std::int64_t{1} << bits) < 2 * count) ++bits;
    if ((std::size_t{1} << bits) > slots_.size()) {
        slots_.assign(std::size_t{1} << bits, Slot{});
        mask_ = slots_.size() - 1;
        shift_ = 64 - bits;
        turn_ = 0;
    }
    if (++turn_ == 0) {  // after 2^32 batches
        std::fill(slots_.begin(), slots_.end(), Slot{});
        turn_ = 1;
    }
}

std::int64_t UniqueRows::collect(const std::int64_t* ids, std::int64_t count, std::int64_t* rows,
                                 std::int64_t* positions) {
    reserve(count);
    std::int32_t distinct = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(&slots_[hashed(ids[i + kAhead], shift_)]);
        const std::int64_t row = ids[i];
        std::size_t at = hashed(row, shift_);
        while (slots_[at].turn == turn_ && slots_[at].row != row) at = (at + 1) & mask_;
        if (slots_[at].turn != turn_) {
            slots_[at] = {row, turn_, distinct};
            rows[distinct++] = row;
        }
        positions[i] = slots_[at].position;
    }
    return distinct;
}

std::int64_t UniqueRows::find(const std::int64_t* ids, std::int64_t count, std::int64_t* positions) const {
    for (std::int64_t i = 0; i < count; ++i) {
        if (slots_.empty()) return i;
        if (i + kAhead < count) __builtin_prefetch(&slots_[hashed(ids[i + kAhead], shift_)]);
        std::size_t at = hashed(ids[i], shift_);
        while (slots_[at].turn == turn_ && slots_[at].row != ids[i]) at = (at + 1) & mask_;
        if (slots_[at].turn != turn_) return i;
        positions[i] = slots_[at].position;
    }
    return -1;
}

}  // namespace hvd_compress::embedding
