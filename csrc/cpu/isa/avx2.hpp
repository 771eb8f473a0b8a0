// Sixteen floats at a time, in two halves, with AVX2 and F16C.
#pragma once

#include <immintrin.h>

#include "hvd_compress/numeric.hpp"
#include "level.hpp"

namespace hvd_compress::cpu::avx2 {
namespace {  // no weak symbols, also where a call is not inlined

// For each mask of eight lanes, the numbers of its lanes, then zeros.
struct LaneTable {
    std::uint8_t lanes[256][8];

    constexpr LaneTable() : lanes() {
        for (int mask = 0; mask < 256; ++mask) {
            int count = 0;
            for (int lane = 0; lane < 8; ++lane) {
                if (mask >> lane & 1) lanes[mask][count++] = static_cast<std::uint8_t>(lane);
            }
        }
    }
};

constexpr LaneTable kLaneTable;

struct Isa {
    static constexpr Level kLevel = Level::kAvx2;
    struct Vec {
        __m256 low, high;
    };
    struct Words {  // sixteen whole numbers of 32 bits
        __m256i low, high;
    };

    static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static Vec load(const Half* p) { return {_mm256_cvtph_ps(load_16_bits(p)), _mm256_cvtph_ps(load_16_bits(p + 8))}; }
    static Vec load(const BFloat16* p) { return {widened(load_16_bits(p)), widened(load_16_bits(p + 8))}; }

    static void store(float* p, Vec v) {
        _mm256_storeu_ps(p, v.low);
        _mm256_storeu_ps(p + 8, v.high);
    }
    static void store(Half* p, Vec v) {
        store_16_bits(p, to_half(v.low));
        store_16_bits(p + 8, to_half(v.high));
    }
    static void store(BFloat16* p, Vec v) {
        store_16_bits(p, to_bfloat16(v.low));
        store_16_bits(p + 8, to_bfloat16(v.high));
    }
    // Past the caches; p is aligned to 64 bytes. After the last one comes fence().
    static void stream(float* p, Vec v) {
        _mm256_stream_ps(p, v.low);
        _mm256_stream_ps(p + 8, v.high);
    }

    static void fence() { _mm_sfence(); }

    static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Vec all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static Vec subtract(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
    static Vec multiply(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    // b where one is NaN.
    static Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

    // As if stored as T and loaded again.
    template <class T>
    static Vec rounded(Vec v) {
        if constexpr (sizeof(T) == sizeof(float)) {
            return v;
        } else {
            T stored[16];
            store(stored, v);
            return load(stored);
        }
    }

    // Bit i of a mask is lane i. Keys are those of Traits<float>, but that NaN keep their own bits; key <= 2^31.
    static std::uint32_t at_least(Vec v, std::uint32_t key) {
        return bits_of(_mm256_castsi256_ps(reaches(v.low, key)), _mm256_castsi256_ps(reaches(v.high, key)));
    }
    static std::uint32_t below_zero(Vec v) {
        const __m256 zero = _mm256_setzero_ps();
        return bits_of(_mm256_cmp_ps(v.low, zero, _CMP_LT_OQ), _mm256_cmp_ps(v.high, zero, _CMP_LT_OQ));
    }

    static Vec without(Vec v, std::uint32_t mask) { return choose(mask, v, zero()); }
    // a where the bit is 0, b where it is 1.
    static Vec choose(std::uint32_t mask, Vec a, Vec b) {
        return {_mm256_blendv_ps(a.low, b.low, spread(mask)), _mm256_blendv_ps(a.high, b.high, spread(mask >> 8))};
    }

    // Writes the lanes of the mask, and behind them up to 16 elements of no meaning; returns how many lanes.
    static int append(Vec v, std::uint32_t mask, std::int32_t first, float* values, std::int32_t* indices) {
        const int low = append_half(v.low, mask & 0xffu, first, values, indices);
        return low + append_half(v.high, mask >> 8 & 0xffu, first + 8, values + low, indices + low);
    }

    // The same of elements that have indices already.
    static int append(Vec v, const std::int32_t* of, std::uint32_t mask, float* values, std::int32_t* indices) {
        const __m256i* numbers = reinterpret_cast<const __m256i*>(of);
        const __m256i first = order(mask & 0xffu), second = order(mask >> 8 & 0xffu);
        const int low = __builtin_popcount(mask & 0xffu);
        _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(v.low, first));
        _mm256_storeu_ps(values + low, _mm256_permutevar8x32_ps(v.high, second));
        store_half(indices, _mm256_permutevar8x32_epi32(_mm256_loadu_si256(numbers), first));
        store_half(indices + low, _mm256_permutevar8x32_epi32(_mm256_loadu_si256(numbers + 1), second));
        return __builtin_popcount(mask);
    }
    // The same of keys alone.
    static int append_keys(Vec v, std::uint32_t mask, std::uint32_t* keys) {
        const int low = __builtin_popcount(mask & 0xffu);
        store_half(keys, _mm256_permutevar8x32_epi32(magnitude(v.low), order(mask & 0xffu)));
        store_half(keys + low, _mm256_permutevar8x32_epi32(magnitude(v.high), order(mask >> 8 & 0xffu)));
        return __builtin_popcount(mask);
    }

    // lanes[j] += |v[j]|.
    static void add_magnitudes(Vec v, double* lanes) {
        const __m256 low = _mm256_castsi256_ps(magnitude(v.low)), high = _mm256_castsi256_ps(magnitude(v.high));
        add_four(lanes, _mm256_cvtps_pd(_mm256_castps256_ps128(low)));
        add_four(lanes + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)));
        add_four(lanes + 8, _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
        add_four(lanes + 12, _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
    }

    // lanes[j] += v[j]^2.
    static void add_squares(Vec v, double* lanes) {
        add_four(lanes, squared(_mm256_castps256_ps128(v.low)));
        add_four(lanes + 4, squared(_mm256_extractf128_ps(v.low, 1)));
        add_four(lanes + 8, squared(_mm256_castps256_ps128(v.high)));
        add_four(lanes + 12, squared(_mm256_extractf128_ps(v.high, 1)));
    }

    static std::uint32_t largest_key(Vec v) { return largest(keys(v)); }

    // The keys of all lanes.
    static void store_keys(std::uint32_t* p, Vec v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), magnitude(v.low));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), magnitude(v.high));
    }

    static Words all_words(std::uint32_t value) {
        const __m256i words = _mm256_set1_epi32(static_cast<int>(value));
        return {words, words};
    }
    static Words count_up(std::uint32_t first) {
        const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i low = _mm256_add_epi32(numbers, _mm256_set1_epi32(static_cast<int>(first)));
        return {low, _mm256_add_epi32(low, _mm256_set1_epi32(8))};
    }
    static Words exclusive_or(Words a, Words b) {
        return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
    }
    // Of the even words: the lower half of a product is there, its upper half in the odd word behind.
    static Words products(Words a, std::uint32_t b) {
        const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
        return {_mm256_mul_epu32(a.low, factor), _mm256_mul_epu32(a.high, factor)};
    }
    // The odd words in the place of the even ones, and the even ones of two.
    static Words odd(Words a) { return {_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)}; }
    static Words interleaved(Words even, Words odd) {
        return {_mm256_blend_epi32(even.low, _mm256_slli_epi64(odd.low, 32), 0xaa),
                _mm256_blend_epi32(even.high, _mm256_slli_epi64(odd.high, 32), 0xaa)};
    }
    static Words sum(Words a, Words b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
    static Words lower_halves(Words a) {
        const __m256i mask = _mm256_set1_epi32(0xffff);
        return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
    }
    static Words upper_halves(Words a) { return {_mm256_srli_epi32(a.low, 16), _mm256_srli_epi32(a.high, 16)}; }

    static Vec absolute(Vec v) {
        return {_mm256_castsi256_ps(magnitude(v.low)), _mm256_castsi256_ps(magnitude(v.high))};
    }
    static Vec to_floats(Words a) {
        return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
    }  // of signed numbers
    static Words truncated(Vec v) { return {_mm256_cvttps_epi32(v.low), _mm256_cvttps_epi32(v.high)}; }
    static Words smaller(Words a, Words b) {  // of signed numbers
        return {_mm256_min_epi32(a.low, b.low), _mm256_min_epi32(a.high, b.high)};
    }
    static Words negated(Words a, std::uint32_t mask) {
        return {negated_half(a.low, spread(mask)), negated_half(a.high, spread(mask >> 8))};
    }
    // -a where v has a sign, -0 included; a must be 0 where v is +0, as this makes it so.
    static Words with_sign(Words a, Vec v) {
        return {_mm256_sign_epi32(a.low, _mm256_castps_si256(v.low)),
                _mm256_sign_epi32(a.high, _mm256_castps_si256(v.high))};
    }
    // As at_least(): 1 there, else 0; or |v| there, else 0.
    static Words ones_from(Vec v, std::uint32_t key) {
        return {_mm256_srli_epi32(reaches(v.low, key), 31), _mm256_srli_epi32(reaches(v.high, key), 31)};
    }
    static Vec magnitudes_from(Vec v, std::uint32_t key) {
        return {_mm256_castsi256_ps(_mm256_and_si256(magnitude(v.low), reaches(v.low, key))),
                _mm256_castsi256_ps(_mm256_and_si256(magnitude(v.high), reaches(v.high, key)))};
    }
    static void store_bytes(std::uint8_t* p, Words a) {  // the lowest of each word
        const __m256i lowest = _mm256_set1_epi32(0xff);
        const __m256i low = _mm256_and_si256(a.low, lowest), high = _mm256_and_si256(a.high, lowest);
        const __m256i words = _mm256_packus_epi32(low, high);  // of the low lanes, then of the high lanes
        const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }
    static void store_bytes(std::uint8_t* p, Words a, Words b) {  // of numbers from -128 to 127
        const __m256i first = _mm256_packs_epi32(a.low, a.high), second = _mm256_packs_epi32(b.low, b.high);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing goes by halves of a vector
        store_half(p, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order));
    }
    static Words load_bytes(const std::uint8_t* p) {  // with their signs
        return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
    }

    // The same bits.
    static Vec as_floats(Words a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
    static Words keys(Vec v) { return {magnitude(v.low), magnitude(v.high)}; }
    static Words larger(Words a, Words b) {  // of numbers without a sign
        return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)};
    }
    static std::uint32_t largest(Words a) {
        const __m256i both = _mm256_max_epu32(a.low, a.high);
        __m128i four = _mm_max_epu32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
        return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
    }
    static float sum_of_lanes(Vec v) {  // pairwise: lanes i and i + 8, then i and i + 4, ...
        const __m256 eight = _mm256_add_ps(v.low, v.high);
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    static Words to_nearest(Vec v) { return {_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)}; }  // ties to even
    static Words bit_and(Words a, Words b) {
        return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
    }
    static Words bit_or(Words a, Words b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
    template <int bits>
    static Words shift_left(Words a) {
        return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
    }
    template <int bits>
    static Words shift_right(Words a) {  // of signed numbers
        return {_mm256_srai_epi32(a.low, bits), _mm256_srai_epi32(a.high, bits)};
    }

  private:
    static __m256i negated_half(__m256i a, __m256 where) {
        const __m256i negative = _mm256_sub_epi32(_mm256_setzero_si256(), a);
        return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(negative), where));
    }
    static __m128i load_16_bits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
    static void store_16_bits(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
    static __m256 widened(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
    static __m256i magnitude(__m256 v) {
        return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    }

    static __m256i reaches(__m256 v, std::uint32_t key) {
        // Keys have no sign bit, so that signed comparison with key - 1 will do, from -1 to the largest number.
        return _mm256_cmpgt_epi32(magnitude(v), _mm256_set1_epi32(static_cast<int>(key - 1)));
    }
    static std::uint32_t bits_of(__m256 low, __m256 high) {
        return static_cast<std::uint32_t>(_mm256_movemask_ps(low)) |
               static_cast<std::uint32_t>(_mm256_movemask_ps(high)) << 8;
    }
    // Bit i, of eight, in the sign of lane i.
    static __m256 spread(std::uint32_t mask) {
        const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        return _mm256_castsi256_ps(_mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int>(mask)), shifts));
    }
    // The numbers of the lanes of a mask of eight.
    static __m256i order(std::uint32_t mask) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLaneTable.lanes[mask])));
    }
    static void store_half(void* p, __m256i words) { _mm256_storeu_si256(static_cast<__m256i*>(p), words); }
    static int append_half(__m256 v, std::uint32_t mask, std::int32_t first, float* values, std::int32_t* indices) {
        _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(v, order(mask)));
        store_half(indices, _mm256_add_epi32(order(mask), _mm256_set1_epi32(first)));
        return __builtin_popcount(mask);
    }
    static void add_four(double* lanes, __m256d numbers) {
        _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_loadu_pd(lanes), numbers));
    }
    static __m256d squared(__m128 v) {
        const __m256d wide = _mm256_cvtps_pd(v);
        return _mm256_mul_pd(wide, wide);
    }
    static __m128i to_half(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // As from_float<BFloat16>.
    static __m128i to_bfloat16(__m256 v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i kept = _mm256_srli_epi32(bits, 16);
        const __m256i half = _mm256_add_epi32(_mm256_and_si256(kept, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
        const __m256i number = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
        const __m256i nan = _mm256_or_si256(kept, _mm256_set1_epi32(0x40));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i words = _mm256_blendv_epi8(number, nan, is_nan);
        return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    }
};

}  // namespace
}  // namespace hvd_compress::cpu::avx2
