#include "unique_rows.hpp"

#include <algorithm>

#include "row_table.hpp"

namespace hvd_compress::embedding {
namespace {

constexpr std::int64_t kAhead = 16;  // ids whose places are on their way from memory
constexpr int kSmallestBits = 10;

}  // namespace

// Empty, with four places for each row, or more where an earlier batch has needed them.
void UniqueRows::resize(std::int64_t rows) {
    int bits = std::max(kSmallestBits, 64 - shift_);
    while ((std::int64_t{1} << bits) < 4 * rows) ++bits;
    places_.assign(std::size_t{1} << bits, 0);
    mask_ = places_.size() - 1;
    shift_ = 64 - bits;
}

void UniqueRows::enlarge(const std::int64_t* rows, std::int32_t distinct) {
    resize(distinct);
    for (std::int32_t place = 1; place <= distinct; ++place) {
        std::size_t at = hashed(rows[place - 1], shift_);
        while (places_[at] != 0) at = (at + 1) & mask_;
        places_[at] = place;
    }
}

// Puts rows into the order of their places, which is that of their hashes.
void UniqueRows::order(std::int64_t* rows, std::int32_t distinct) {
    first_order_.assign(rows, rows + distinct);
    moved_.resize(static_cast<std::size_t>(distinct));
    std::int32_t next = 0;
    for (std::int32_t& place : places_) {
        if (place == 0) continue;
        rows[next] = first_order_[static_cast<std::size_t>(place - 1)];
        moved_[static_cast<std::size_t>(place - 1)] = next;
        place = ++next;
    }
}

std::int64_t UniqueRows::collect(const std::int64_t* ids, std::int64_t count, std::int64_t* rows,
                                 std::int64_t* positions) {
    resize(0);
    std::int32_t distinct = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(&places_[hashed(ids[i + kAhead], shift_)], 1);
        const std::int64_t row = ids[i];
        std::size_t at = hashed(row, shift_);
        while (places_[at] != 0 && rows[places_[at] - 1] != row) at = (at + 1) & mask_;
        if (places_[at] == 0) {
            rows[distinct++] = row;
            places_[at] = distinct;
            positions[i] = distinct - 1;
            if (2 * static_cast<std::size_t>(distinct) > places_.size()) enlarge(rows, distinct);
        } else {
            positions[i] = places_[at] - 1;
        }
    }
    order(rows, distinct);
    for (std::int64_t i = 0; i < count; ++i) positions[i] = moved_[static_cast<std::size_t>(positions[i])];
    return distinct;
}

std::int64_t UniqueRows::find(const std::int64_t* ids, std::int64_t count, const std::int64_t* rows,
                              std::int64_t* positions) const {
    for (std::int64_t i = 0; i < count; ++i) {
        if (places_.empty()) return i;
        if (i + kAhead < count) __builtin_prefetch(&places_[hashed(ids[i + kAhead], shift_)]);
        std::size_t at = hashed(ids[i], shift_);
        while (places_[at] != 0 && rows[places_[at] - 1] != ids[i]) at = (at + 1) & mask_;
        if (places_[at] == 0) return i;
        positions[i] = places_[at] - 1;
    }
    return -1;
}

}  // namespace hvd_compress::embedding
