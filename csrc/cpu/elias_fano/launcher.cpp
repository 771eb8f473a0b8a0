#include <algorithm>
#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/elias_fano.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kHighWords = 2048;        // that one part of the work reads or writes
constexpr std::int64_t kLowIndices = 32 * 1024;  // whose low bits begin and end with a word

std::int64_t divided_up(std::int64_t n, std::int64_t by) { return n / by + (n % by != 0); }

Status check(std::int64_t n, std::int64_t count) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return count < 0 || count > n ? Status::kBadSize : Status::kOk;
}

bool ascends(const std::int32_t* indices, std::int64_t count, std::int64_t n) {
    if (count == 0) return true;
    bool good = indices[0] >= 0 && indices[count - 1] < n;
    for (std::int64_t i = 1; i < count; ++i) good &= indices[i - 1] < indices[i];
    return good;
}

std::int64_t first_that_does_not(const std::int32_t* indices, std::int64_t count, std::int64_t n) {
    for (std::int64_t i = 0; i < count; ++i) {
        if (indices[i] < 0 || indices[i] >= n || (i > 0 && indices[i - 1] >= indices[i])) return i;
    }
    return -1;
}

// The first i with (indices[i] >> low_bits) + i >= bit.
std::int64_t first_from_bit(const std::int32_t* indices, std::int64_t count, std::int64_t low_bits, std::int64_t bit) {
    std::int64_t low = 0, high = count;
    while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if ((indices[middle] >> low_bits) + middle < bit) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Indices were checked; should another thread write to them meanwhile, there is still nothing written outside.
void write_high(const std::int32_t* list, std::int64_t count, std::int64_t low_bits, std::int64_t begin,
                std::int64_t end, std::uint32_t* words) {
    std::fill(words + begin, words + end, 0u);
    const volatile std::int32_t* indices = list;  // each is read once
    for (std::int64_t i = first_from_bit(list, count, low_bits, 32 * begin); i < count; ++i) {
        const std::int64_t bit = (indices[i] >> low_bits) + i;
        if (static_cast<std::uint64_t>(bit - 32 * begin) >= static_cast<std::uint64_t>(32 * (end - begin))) break;
        words[bit / 32] |= 1u << bit % 32;
    }
}

void write_low(const std::int32_t* indices, std::int64_t count, std::int64_t low_bits, std::uint32_t* words) {
    const std::uint32_t mask = (1u << low_bits) - 1;
    std::uint64_t gathered = 0;
    std::int64_t bits = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        gathered |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(indices[i]) & mask) << bits;
        bits += low_bits;
        if (bits < 32) continue;
        *words++ = static_cast<std::uint32_t>(gathered);
        gathered >>= 32;
        bits -= 32;
    }
    if (bits > 0) *words = static_cast<std::uint32_t>(gathered);
}

// The low bits of one index after the other.
class LowBits {
  public:
    LowBits(const std::uint32_t* words, EliasFano code, std::int64_t first)
        : next_(words + first * code.low_bits / 32), end_(words + code.low_words), bits_(code.low_bits) {
        const std::int64_t skipped = first * code.low_bits % 32;
        if (skipped == 0 || next_ == end_) return;
        held_ = *next_++ >> skipped;
        count_ = 32 - skipped;
    }

    std::uint32_t next() {
        if (count_ < bits_ && next_ != end_) {
            held_ |= static_cast<std::uint64_t>(*next_++) << count_;
            count_ += 32;
        }
        const auto found = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits_) - 1));
        held_ >>= bits_;
        count_ -= bits_;
        return found;
    }

  private:
    const std::uint32_t *next_, *end_;
    std::int64_t bits_, count_ = 0;
    std::uint64_t held_ = 0;
};

// Decodes the ones in words begin..end-1, of which the first is that of index `first`, up to index `last` - 1. Returns
// the position of the first bad one, or `last`; the number of ones goes to *found.
std::int64_t read_part(const std::uint32_t* words, EliasFano code, std::int64_t n, std::int64_t begin, std::int64_t end,
                       std::int64_t first, std::int64_t last, std::int32_t* indices, std::int64_t* found) {
    const std::uint32_t* const low_words = words + code.high_words;
    std::int64_t i = first, bad = last, before = -1;
    if (first > 0 && begin > 0 && words[begin - 1] >> 31 != 0) {  // the one before may have the same high part
        const std::int64_t high = 32 * begin - 1 - (first - 1);
        before = high << code.low_bits | LowBits(low_words, code, first - 1).next();
    }
    LowBits low(low_words, code, first);
    for (std::int64_t word = begin; word < end; ++word) {
        for (std::uint32_t bits = words[word]; bits != 0; bits &= bits - 1, ++i) {
            if (i >= last) continue;
            const std::int64_t high = 32 * word + __builtin_ctz(bits) - i;
            const std::int64_t index = high << code.low_bits | low.next();
            if ((index >= n || index <= before) && i < bad) bad = i;
            indices[i] = static_cast<std::int32_t>(index);
            before = index;
        }
    }
    *found = i - first;
    return bad;
}

}  // namespace

std::size_t elias_fano_workspace_bytes(std::int64_t n, std::int64_t count) noexcept {
    const std::int64_t parts = divided_up(elias_fano(n, count).high_words, kHighWords);
    return static_cast<std::size_t>(parts) * sizeof(std::int64_t);
}

Status elias_fano_encode(const std::int32_t* indices, std::int64_t count, std::int64_t n, std::uint32_t* words,
                         std::int64_t* first_bad, Stream) noexcept {
    *first_bad = -1;
    if (const Status status = check(n, count); status != Status::kOk) return status;
    if (!ascends(indices, count, n)) {
        *first_bad = first_that_does_not(indices, count, n);
        return *first_bad < 0 ? Status::kChangedMeanwhile : Status::kIndexOutOfRange;
    }
    const EliasFano code = elias_fano(n, count);
    const std::int64_t high_parts = divided_up(code.high_words, kHighWords);
    const std::int64_t low_parts = code.low_bits > 0 ? divided_up(count, kLowIndices) : 0;
    parallel_for(high_parts + low_parts, [=](std::int64_t part) {
        if (part < high_parts) {
            const std::int64_t begin = part * kHighWords, end = std::min(begin + kHighWords, code.high_words);
            write_high(indices, count, code.low_bits, begin, end, words);
        } else {
            const std::int64_t begin = (part - high_parts) * kLowIndices, own = std::min(kLowIndices, count - begin);
            write_low(indices + begin, own, code.low_bits, words + code.high_words + begin / 32 * code.low_bits);
        }
    });
    return Status::kOk;
}

Status elias_fano_decode(const std::uint32_t* words, std::int64_t count, std::int64_t n, std::int32_t* indices,
                         Workspace workspace, std::int64_t* first_bad, Stream) noexcept {
    *first_bad = -1;
    if (const Status status = check(n, count); status != Status::kOk) return status;
    if (workspace.bytes < elias_fano_workspace_bytes(n, count)) return Status::kWorkspaceTooSmall;
    const EliasFano code = elias_fano(n, count);
    const std::int64_t parts = divided_up(code.high_words, kHighWords);
    std::int64_t* const firsts = static_cast<std::int64_t*>(workspace.data);  // of each part, the first index
    parallel_for(parts, [=](std::int64_t part) {
        const std::int64_t begin = part * kHighWords, end = std::min(begin + kHighWords, code.high_words);
        std::int64_t ones = 0;
        for (std::int64_t word = begin; word < end; ++word) ones += __builtin_popcount(words[word]);
        firsts[part] = ones;
    });
    std::int64_t total = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t own = firsts[part];
        firsts[part] = total;
        total += own;
    }
    if (total != count) {
        *first_bad = std::min(total, count);
        return Status::kIndexOutOfRange;
    }
    std::atomic<std::int64_t> bad{count};
    std::atomic<bool> same{true};
    parallel_for(parts, [&](std::int64_t part) {
        const std::int64_t begin = part * kHighWords, end = std::min(begin + kHighWords, code.high_words);
        const std::int64_t first = firsts[part], last = part + 1 < parts ? firsts[part + 1] : count;
        std::int64_t found = 0;
        const std::int64_t own = read_part(words, code, n, begin, end, first, last, indices, &found);
        if (found != last - first) same = false;
        std::int64_t least = bad.load();
        while (own < last && own < least && !bad.compare_exchange_weak(least, own)) {
        }
    });
    if (!same) return Status::kChangedMeanwhile;
    if (bad == count) return Status::kOk;
    *first_bad = bad;
    return Status::kIndexOutOfRange;
}

}  // namespace hvd_compress::cpu
