// Radix selection: the key of the k-th largest element, found digit by digit from counts.
#pragma once

#include <algorithm>

#include "hvd_compress/numeric.hpp"
#include "tuning.hpp"

namespace hvd_compress::cpu {

using Count = std::uint32_t;  // enough for kMaxNumel

// Selected are all elements above `key`, and the first `ties` of those equal to it.
template <class T>
struct Threshold {
    typename Traits<T>::Key key;
    std::int64_t ties;
};

// A digit of a key: kDigitBits from the top at first, what is left at last.
struct Digit {
    int shift;
    int bits;

    std::uint32_t of(std::uint32_t key) const { return (key >> shift) & ((1u << bits) - 1); }
    std::uint32_t prefix(std::uint32_t key) const { return key >> shift; }
    Digit next() const {
        const int width = std::min(shift, kDigitBits);
        return {shift - width, width};
    }
};

template <class T>
constexpr Digit kFirstDigit{Traits<T>::kKeyBits - kDigitBits, kDigitBits};

inline void clear(Count* counts) { std::fill_n(counts, kBins, Count{0}); }

// Walks down from the largest digit to the one that holds the element of rank `*wanted`, counted from 1, and leaves in
// `*wanted` how many are still wanted of that digit.
inline std::uint32_t find_digit(const Count* counts, Digit digit, std::int64_t* wanted) {
    std::uint32_t value = (1u << digit.bits) - 1;
    while (value > 0 && counts[value] < *wanted) *wanted -= counts[value--];
    return value;
}

template <class T>
void count_digit(const T* x, std::int64_t n, Digit digit, std::uint32_t prefix, Count* counts) {
    clear(counts);
    for (std::int64_t i = 0; i < n; ++i) {
        const auto key = Traits<T>::key(x[i]);
        if (key >> (digit.shift + digit.bits) == prefix) ++counts[digit.of(key)];
    }
}

// Finds the threshold of the k largest, 1 <= k <= n; `counts` (kBins) holds those of the first digit, and is used up.
template <class T>
Threshold<T> find_threshold(const T* x, std::int64_t n, std::int64_t k, Count* counts) {
    std::int64_t wanted = k;
    Digit digit = kFirstDigit<T>;
    std::uint32_t prefix = find_digit(counts, digit, &wanted);
    Count candidates = counts[prefix];
    while (digit.shift > 0) {
        // All of the prefix are wanted: no need to know its elements apart.
        if (candidates == wanted) return {prefix << digit.shift, n};
        digit = digit.next();
        count_digit(x, n, digit, prefix, counts);
        const std::uint32_t value = find_digit(counts, digit, &wanted);
        candidates = counts[value];
        prefix = (prefix << digit.bits) | value;
    }
    return {prefix, wanted};
}

}  // namespace hvd_compress::cpu
