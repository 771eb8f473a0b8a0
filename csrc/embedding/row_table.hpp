// From the ids of rows to numbers: open addressing with linear probing, for as many rows as batches in a window have.
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
    static constexpr std::int32_t kNone = -1;

    RowTable() { resize(kSmallestBits); }

    void prefetch(std::int64_t row) const { __builtin_prefetch(&slots_[hashed(row, shift_)]); }

    // The number of a row: `fresh` if it had none.
    std::int32_t find_or_insert(std::int64_t row, std::int32_t fresh) {
        if (2 * (size_ + 1) > slots_.size()) grow();
        std::size_t at = hashed(row, shift_);
        while (slots_[at].number != kNone) {
            if (slots_[at].row == row) return slots_[at].number;
            at = (at + 1) & mask_;
        }
        slots_[at] = {row, fresh};
        ++size_;
        return fresh;
    }

    std::int32_t find(std::int64_t row) const {
        for (std::size_t at = hashed(row, shift_); slots_[at].number != kNone; at = (at + 1) & mask_)
            if (slots_[at].row == row) return slots_[at].number;
        return kNone;
    }

    // Moves up what would not be found any more behind the gap (Knuth, volume 3, 6.4, algorithm R).
    void erase(std::int64_t row) {
        std::size_t gap = hashed(row, shift_);
        while (slots_[gap].row != row || slots_[gap].number == kNone) {
            if (slots_[gap].number == kNone) return;
            gap = (gap + 1) & mask_;
        }
        for (std::size_t at = (gap + 1) & mask_; slots_[at].number != kNone; at = (at + 1) & mask_) {
            const std::size_t home = hashed(slots_[at].row, shift_);
            if (((at - home) & mask_) >= ((at - gap) & mask_)) {
                slots_[gap] = slots_[at];
                gap = at;
            }
        }
        slots_[gap].number = kNone;
        --size_;
    }

    std::size_t size() const { return size_; }

  private:
    static constexpr int kSmallestBits = 10;

    struct Slot {
        std::int64_t row = 0;
        std::int32_t number = kNone;
    };

    void resize(int bits) {
        slots_.assign(std::size_t{1} << bits, Slot{});
        mask_ = slots_.size() - 1;
        shift_ = 64 - bits;
    }

    void grow() {
        const std::vector<Slot> old = std::move(slots_);
        resize(64 - shift_ + 1);
        size_ = 0;
        for (const Slot& slot : old)
            if (slot.number != kNone) find_or_insert(slot.row, slot.number);
    }

    std::vector<Slot> slots_;
    std::size_t mask_ = 0, size_ = 0;
    int shift_ = 64;
};

}  // namespace hvd_compress::embedding
