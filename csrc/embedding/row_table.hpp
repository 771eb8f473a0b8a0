// Where each row was used last: open addressing with linear probing, for the rows of the batches in a window.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd_compress::embedding {

// Fibonacci hashing: the high bits of the product are well mixed, whatever ids have in common.
inline std::size_t hashed(std::int64_t row, int shift) {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ull) >> shift);
}

class RowTable {
  public:
    static constexpr std::int32_t kNever = -1;

    struct Slot {
        std::int64_t row = 0;
        std::int32_t batch = kNever;  // which marks a free slot, too
        std::int32_t use = 0;
    };

    RowTable() { resize(kSmallestBits); }

    void prefetch(std::int64_t row) const { __builtin_prefetch(&slots_[hashed(row, shift_)], 1); }

    // The slot of a row, with the batch that used it last; kNever if none from `oldest` on did. The caller sets it to a
    // batch before anything else. What earlier batches have used is forgotten when the table is crowded.
    Slot& at(std::int64_t row, std::int32_t oldest) {
        if (2 * (taken_ + 1) > slots_.size()) rebuild(oldest);
        std::size_t at = hashed(row, shift_);
        for (; slots_[at].batch != kNever; at = (at + 1) & mask_) {
            if (slots_[at].row != row) continue;
            if (slots_[at].batch < oldest) slots_[at].batch = kNever;
            return slots_[at];
        }
        slots_[at].row = row;
        ++taken_;
        return slots_[at];
    }

  private:
    static constexpr int kSmallestBits = 10;

    void resize(int bits) {
        slots_.assign(std::size_t{1} << bits, Slot{});
        mask_ = slots_.size() - 1;
        shift_ = 64 - bits;
        taken_ = 0;
    }

    void rebuild(std::int32_t oldest) {
        std::size_t needed = 0;
        for (const Slot& slot : slots_) needed += slot.batch >= oldest && slot.batch != kNever;
        int bits = 64 - shift_;
        while ((std::size_t{1} << bits) < 4 * (needed + 1)) ++bits;
        const std::vector<Slot> old = std::move(slots_);
        resize(bits);
        for (const Slot& slot : old)
            if (slot.batch >= oldest && slot.batch != kNever) at(slot.row, oldest) = slot;
    }

    std::vector<Slot> slots_;
    std::size_t mask_ = 0, taken_ = 0;
    int shift_ = 64;
};

}  // namespace hvd_compress::embedding
