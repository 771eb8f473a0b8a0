// Sixteen floats at a time in plain C++, which compilers turn into whatever vectors the machine has (SSE2, NEON).
#pragma once

#include "hvd_compress/numeric.hpp"
#include "level.hpp"

namespace hvd_compress::cpu::portable {
namespace {  // no weak symbols, also where a call is not inlined

struct Isa {
    static constexpr Level kLevel = Level::kPortable;
    struct Vec {
        float lanes[16];
    };
    struct Words {  // sixteen whole numbers of 32 bits
        std::uint32_t lanes[16];
    };

    template <class T>
    static Vec load(const T* p) {
        return each([p](int i) { return to_float(p[i]); });
    }
    template <class T>
    static void store(T* p, Vec v) {
        for (int i = 0; i < 16; ++i) p[i] = from_float<T>(v.lanes[i]);
    }
    static void stream(float* p, Vec v) { store(p, v); }
    static void fence() {}

    static Vec zero() { return Vec{}; }
    static Vec all(float value) {
        return each([value](int) { return value; });
    }
    static Vec add(Vec a, Vec b) {
        return each([&](int i) { return a.lanes[i] + b.lanes[i]; });
    }
    static Vec subtract(Vec a, Vec b) {
        return each([&](int i) { return a.lanes[i] - b.lanes[i]; });
    }
    static Vec multiply(Vec a, Vec b) {
        return each([&](int i) { return a.lanes[i] * b.lanes[i]; });
    }
    static Vec larger(Vec a, Vec b) {  // b where one is NaN
        return each([&](int i) { return a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i]; });
    }

    // As if stored as T and loaded again.
    template <class T>
    static Vec rounded(Vec v) {
        return each([&](int i) { return to_float(from_float<T>(v.lanes[i])); });
    }

    // Bit i of a mask is lane i. Keys are those of Traits<float>, but that NaN keep their own bits; key <= 2^31.
    static std::uint32_t at_least(Vec v, std::uint32_t key) {
        std::uint32_t largest = 0;
        for (int i = 0; i < 16; ++i) {
            const std::uint32_t own = magnitude(v.lanes[i]);
            largest = own > largest ? own : largest;
        }
        if (largest < key) return 0;  // the usual case, and the loop above is one of vectors
        return mask_of([&](int i) { return magnitude(v.lanes[i]) >= key; });
    }
    static std::uint32_t below_zero(Vec v) {
        return mask_of([&](int i) { return v.lanes[i] < 0.0f; });
    }

    static Vec without(Vec v, std::uint32_t mask) { return choose(mask, v, zero()); }
    // a where the bit is 0, b where it is 1.
    static Vec choose(std::uint32_t mask, Vec a, Vec b) {
        return each([&](int i) { return mask >> i & 1 ? b.lanes[i] : a.lanes[i]; });
    }

    // Writes the lanes of the mask, and behind them up to 16 elements of no meaning; returns how many lanes.
    static int append(Vec v, std::uint32_t mask, std::int32_t first, float* values, std::int32_t* indices) {
        int count = 0;
        for (; mask != 0; mask &= mask - 1, ++count) {
            const int lane = __builtin_ctz(mask);
            values[count] = v.lanes[lane];
            indices[count] = first + lane;
        }
        return count;
    }

    // The same of elements that have indices already.
    static int append(Vec v, const std::int32_t* of, std::uint32_t mask, float* values, std::int32_t* indices) {
        int count = 0;
        for (; mask != 0; mask &= mask - 1, ++count) {
            const int lane = __builtin_ctz(mask);
            values[count] = v.lanes[lane];
            indices[count] = of[lane];
        }
        return count;
    }
    // The same of keys alone.
    static int append_keys(Vec v, std::uint32_t mask, std::uint32_t* keys) {
        int count = 0;
        for (; mask != 0; mask &= mask - 1) keys[count++] = magnitude(v.lanes[__builtin_ctz(mask)]);
        return count;
    }

    // lanes[j] += |v[j]|.
    static void add_magnitudes(Vec v, double* lanes) {
        for (int j = 0; j < 16; ++j) lanes[j] += static_cast<double>(from_bits(magnitude(v.lanes[j])));
    }

    // lanes[j] += v[j]^2.
    static void add_squares(Vec v, double* lanes) {
        for (int j = 0; j < 16; ++j) lanes[j] += static_cast<double>(v.lanes[j]) * static_cast<double>(v.lanes[j]);
    }

    static std::uint32_t largest_key(Vec v) { return largest(keys(v)); }

    // The keys of all lanes.
    static void store_keys(std::uint32_t* p, Vec v) {
        for (int i = 0; i < 16; ++i) p[i] = magnitude(v.lanes[i]);
    }

    static Words all_words(std::uint32_t value) {
        return each_word([value](int) { return value; });
    }
    static Words count_up(std::uint32_t first) {
        return each_word([first](int i) { return first + static_cast<std::uint32_t>(i); });
    }
    static Words exclusive_or(Words a, Words b) {
        return each_word([&](int i) { return a.lanes[i] ^ b.lanes[i]; });
    }
    // Of the even words: the lower half of a product is there, its upper half in the odd word behind.
    static Words products(Words a, std::uint32_t b) {
        for (int i = 0; i < 16; i += 2) {
            const std::uint64_t product = std::uint64_t{a.lanes[i]} * b;
            a.lanes[i] = static_cast<std::uint32_t>(product);
            a.lanes[i + 1] = static_cast<std::uint32_t>(product >> 32);
        }
        return a;
    }
    // The odd words in the place of the even ones, and the even ones of two.
    static Words odd(Words a) {
        for (int i = 0; i < 16; i += 2) a.lanes[i] = a.lanes[i + 1];
        return a;
    }
    static Words interleaved(Words even, Words odd) {
        for (int i = 0; i < 16; i += 2) even.lanes[i + 1] = odd.lanes[i];
        return even;
    }
    static Words sum(Words a, Words b) {
        return each_word([&](int i) { return a.lanes[i] + b.lanes[i]; });
    }
    static Words lower_halves(Words a) {
        return each_word([&](int i) { return a.lanes[i] & 0xffffu; });
    }
    static Words upper_halves(Words a) {
        return each_word([&](int i) { return a.lanes[i] >> 16; });
    }

    static Vec absolute(Vec v) {
        return each([&](int i) { return from_bits(magnitude(v.lanes[i])); });
    }
    static Vec to_floats(Words a) {  // of signed numbers
        return each([&](int i) { return static_cast<float>(static_cast<std::int32_t>(a.lanes[i])); });
    }
    static Words truncated(Vec v) {  // to signed numbers
        return each_word([&](int i) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(v.lanes[i])); });
    }
    static Words smaller(Words a, Words b) {  // of signed numbers
        return each_word([&](int i) {
            return static_cast<std::int32_t>(a.lanes[i]) < static_cast<std::int32_t>(b.lanes[i]) ? a.lanes[i]
                                                                                                 : b.lanes[i];
        });
    }
    static Words negated(Words a, std::uint32_t mask) {
        return each_word([&](int i) { return mask >> i & 1 ? 0u - a.lanes[i] : a.lanes[i]; });
    }
    // -a where v has a sign, -0 included; a must be 0 where v is +0, as AVX2 makes it so.
    static Words with_sign(Words a, Vec v) {
        return each_word([&](int i) { return to_bits(v.lanes[i]) >> 31 ? 0u - a.lanes[i] : a.lanes[i]; });
    }
    // As at_least(): 1 there, else 0; or |v| there, else 0.
    static Words ones_from(Vec v, std::uint32_t key) {
        return each_word([&](int i) { return magnitude(v.lanes[i]) >= key ? 1u : 0u; });
    }
    static Vec magnitudes_from(Vec v, std::uint32_t key) {
        return each([&](int i) { return magnitude(v.lanes[i]) >= key ? from_bits(magnitude(v.lanes[i])) : 0.0f; });
    }
    static void store_bytes(std::uint8_t* p, Words a) {  // the lowest of each word
        for (int i = 0; i < 16; ++i) p[i] = static_cast<std::uint8_t>(a.lanes[i]);
    }
    static void store_bytes(std::uint8_t* p, Words a, Words b) {  // of numbers from -128 to 127
        store_bytes(p, a);
        store_bytes(p + 16, b);
    }
    static Words load_bytes(const std::uint8_t* p) {  // with their signs
        return each_word([p](int i) { return static_cast<std::uint32_t>(static_cast<std::int8_t>(p[i])); });
    }

    static Vec as_floats(Words a) {  // the same bits
        return each([&](int i) { return from_bits(a.lanes[i]); });
    }
    static Words keys(Vec v) {
        return each_word([&](int i) { return magnitude(v.lanes[i]); });
    }
    static Words larger(Words a, Words b) {  // of numbers without a sign
        return each_word([&](int i) { return a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i]; });
    }
    static std::uint32_t largest(Words a) {
        std::uint32_t largest = 0;
        for (int i = 0; i < 16; ++i) largest = a.lanes[i] > largest ? a.lanes[i] : largest;
        return largest;
    }
    static float sum_of_lanes(Vec v) {  // pairwise: lanes i and i + 8, then i and i + 4, ...
        for (int width = 8; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) v.lanes[i] += v.lanes[i + width];
        }
        return v.lanes[0];
    }
    static Words to_nearest(Vec v) {     // ties to even; below 2^22
        const float pushes = 0x1.8p23f;  // a sum with it has no room for a fraction
        return each_word([&](int i) { return to_bits(v.lanes[i] + pushes) - to_bits(pushes); });
    }
    static Words bit_and(Words a, Words b) {
        return each_word([&](int i) { return a.lanes[i] & b.lanes[i]; });
    }
    static Words bit_or(Words a, Words b) {
        return each_word([&](int i) { return a.lanes[i] | b.lanes[i]; });
    }
    template <int bits>
    static Words shift_left(Words a) {
        return each_word([&](int i) { return a.lanes[i] << bits; });
    }
    template <int bits>
    static Words shift_right(Words a) {  // of signed numbers
        return each_word(
            [&](int i) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(a.lanes[i]) >> bits); });
    }

  private:
    template <class Lane>
    static Words each_word(Lane lane) {
        Words words;
        for (int i = 0; i < 16; ++i) words.lanes[i] = lane(i);
        return words;
    }
    static std::uint32_t magnitude(float value) { return to_bits(value) & 0x7fffffffu; }

    template <class Lane>
    static Vec each(Lane lane) {
        Vec v;
        for (int i = 0; i < 16; ++i) v.lanes[i] = lane(i);
        return v;
    }
    template <class Holds>
    static std::uint32_t mask_of(Holds holds) {
        std::uint32_t mask = 0;
        for (int i = 0; i < 16; ++i) mask |= static_cast<std::uint32_t>(holds(i)) << i;
        return mask;
    }
};

}  // namespace
}  // namespace hvd_compress::cpu::portable
