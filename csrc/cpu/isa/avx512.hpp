// Sixteen floats at a time with AVX-512 (F, BW, DQ, VL).
#pragma once

#include <immintrin.h>

#include "hvd_compress/numeric.hpp"
#include "level.hpp"

namespace hvd_compress::cpu::avx512 {
namespace {  // no weak symbols, also where a call is not inlined

struct Isa {
    static constexpr Level kLevel = Level::kAvx512;
    using Vec = __m512;
    using Words = __m512i;  // sixteen whole numbers of 32 bits

    static Vec load(const float* p) { return _mm512_loadu_ps(p); }
    static Vec load(const Half* p) { return _mm512_cvtph_ps(load_16_bits(p)); }
    static Vec load(const BFloat16* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bits(p)), 16));
    }

    static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
    static void store(Half* p, Vec v) { store_16_bits(p, to_half(v)); }
    static void store(BFloat16* p, Vec v) { store_16_bits(p, to_bfloat16(v)); }
    // Past the caches; p is aligned to 64 bytes. After the last one comes fence().
    static void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }

    static void fence() { _mm_sfence(); }

    static Vec zero() { return _mm512_setzero_ps(); }
    static Vec all(float value) { return _mm512_set1_ps(value); }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec subtract(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where one is NaN

    // As if stored as T and loaded again.
    template <class T>
    static Vec rounded(Vec v) {
        if constexpr (sizeof(T) == sizeof(float))
            return v;
        else if constexpr (Traits<T>::kInfinityKey == Traits<Half>::kInfinityKey)
            return _mm512_cvtph_ps(to_half(v));
        else
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bfloat16(v)), 16));
    }

    // Bit i of a mask is lane i. Keys are those of Traits<float>, but that NaN keep their own bits; key <= 2^31.
    static std::uint32_t at_least(Vec v, std::uint32_t key) {
        return _mm512_cmpge_epu32_mask(magnitude(v), _mm512_set1_epi32(static_cast<int>(key)));
    }
    static std::uint32_t below_zero(Vec v) { return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ); }

    static Vec without(Vec v, std::uint32_t mask) { return _mm512_maskz_mov_ps(static_cast<__mmask16>(~mask), v); }
    // a where the bit is 0, b where it is 1.
    static Vec choose(std::uint32_t mask, Vec a, Vec b) {
        return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), a, b);
    }

    // Writes the lanes of the mask, and behind them up to 16 elements of no meaning; returns how many lanes.
    static int append(Vec v, std::uint32_t mask, std::int32_t first, float* values, std::int32_t* indices) {
        const auto lanes = static_cast<__mmask16>(mask);
        const __m512i numbers = _mm512_add_epi32(lane_numbers(), _mm512_set1_epi32(first));
        // Not the form that writes to memory: it is microcode on some machines.
        _mm512_storeu_ps(values, _mm512_maskz_compress_ps(lanes, v));
        _mm512_storeu_si512(indices, _mm512_maskz_compress_epi32(lanes, numbers));
        return __builtin_popcount(mask);
    }

    // The same of elements that have indices already.
    static int append(Vec v, const std::int32_t* of, std::uint32_t mask, float* values, std::int32_t* indices) {
        const auto lanes = static_cast<__mmask16>(mask);
        _mm512_storeu_ps(values, _mm512_maskz_compress_ps(lanes, v));
        _mm512_storeu_si512(indices, _mm512_maskz_compress_epi32(lanes, _mm512_loadu_si512(of)));
        return __builtin_popcount(mask);
    }
    // The same of keys alone.
    static int append_keys(Vec v, std::uint32_t mask, std::uint32_t* keys) {
        _mm512_storeu_si512(keys, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), magnitude(v)));
        return __builtin_popcount(mask);
    }

    // lanes[j] += |v[j]|.
    static void add_magnitudes(Vec v, double* lanes) {
        const __m512 m = _mm512_castsi512_ps(magnitude(v));
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(m));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(m, 1));
        _mm512_storeu_pd(lanes, _mm512_add_pd(_mm512_loadu_pd(lanes), low));
        _mm512_storeu_pd(lanes + 8, _mm512_add_pd(_mm512_loadu_pd(lanes + 8), high));
    }

    // lanes[j] += v[j]^2.
    static void add_squares(Vec v, double* lanes) {
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        _mm512_storeu_pd(lanes, _mm512_add_pd(_mm512_loadu_pd(lanes), _mm512_mul_pd(low, low)));
        _mm512_storeu_pd(lanes + 8, _mm512_add_pd(_mm512_loadu_pd(lanes + 8), _mm512_mul_pd(high, high)));
    }

    static std::uint32_t largest_key(Vec v) { return _mm512_reduce_max_epu32(magnitude(v)); }

    // The keys of all lanes.
    static void store_keys(std::uint32_t* p, Vec v) { _mm512_storeu_si512(p, magnitude(v)); }

    static Words all_words(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
    static Words count_up(std::uint32_t first) { return _mm512_add_epi32(lane_numbers(), all_words(first)); }
    static Words exclusive_or(Words a, Words b) { return _mm512_xor_si512(a, b); }
    // Of the even words: the lower half of a product is there, its upper half in the odd word behind.
    static Words products(Words a, std::uint32_t b) { return _mm512_mul_epu32(a, all_words(b)); }
    // The odd words in the place of the even ones, and the even ones of two.
    static Words odd(Words a) { return _mm512_srli_epi64(a, 32); }
    static Words interleaved(Words even, Words odd) {
        return _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    }
    static Words sum(Words a, Words b) { return _mm512_add_epi32(a, b); }
    static Words lower_halves(Words a) { return _mm512_and_si512(a, all_words(0xffffu)); }
    static Words upper_halves(Words a) { return _mm512_srli_epi32(a, 16); }

    static Vec absolute(Vec v) { return _mm512_castsi512_ps(magnitude(v)); }
    static Vec to_floats(Words a) { return _mm512_cvtepi32_ps(a); }            // of signed numbers
    static Words truncated(Vec v) { return _mm512_cvttps_epi32(v); }           // to signed numbers
    static Words smaller(Words a, Words b) { return _mm512_min_epi32(a, b); }  // of signed numbers
    static Words negated(Words a, std::uint32_t mask) {
        return _mm512_mask_sub_epi32(a, static_cast<__mmask16>(mask), _mm512_setzero_si512(), a);
    }
    // -a where v has a sign, -0 included; a must be 0 where v is +0, as AVX2 makes it so.
    static Words with_sign(Words a, Vec v) {
        return _mm512_mask_sub_epi32(a, _mm512_movepi32_mask(_mm512_castps_si512(v)), _mm512_setzero_si512(), a);
    }
    // As at_least(): 1 there, else 0; or |v| there, else 0.
    static Words ones_from(Vec v, std::uint32_t key) {
        return _mm512_maskz_set1_epi32(static_cast<__mmask16>(at_least(v, key)), 1);
    }
    static Vec magnitudes_from(Vec v, std::uint32_t key) {
        return _mm512_maskz_mov_ps(static_cast<__mmask16>(at_least(v, key)), absolute(v));
    }
    static void store_bytes(std::uint8_t* p, Words a) {  // the lowest of each word
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
    }
    static void store_bytes(std::uint8_t* p, Words a, Words b) {  // of numbers from -128 to 127
        store_bytes(p, a);
        store_bytes(p + 16, b);
    }
    static Words load_bytes(const std::uint8_t* p) {  // with their signs
        return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }

    static Vec as_floats(Words a) { return _mm512_castsi512_ps(a); }  // the same bits
    static Words keys(Vec v) { return magnitude(v); }
    static Words larger(Words a, Words b) { return _mm512_max_epu32(a, b); }  // of numbers without a sign
    static std::uint32_t largest(Words a) { return _mm512_reduce_max_epu32(a); }
    static float sum_of_lanes(Vec v) {  // pairwise: lanes i and i + 8, then i and i + 4, ...
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    static Words to_nearest(Vec v) { return _mm512_cvtps_epi32(v); }  // ties to even
    static Words bit_and(Words a, Words b) { return _mm512_and_si512(a, b); }
    static Words bit_or(Words a, Words b) { return _mm512_or_si512(a, b); }
    template <int bits>
    static Words shift_left(Words a) {
        return _mm512_slli_epi32(a, bits);
    }
    template <int bits>
    static Words shift_right(Words a) {  // of signed numbers
        return _mm512_srai_epi32(a, bits);
    }

  private:
    static __m256i load_16_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static void store_16_bits(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
    static __m512i magnitude(Vec v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
    static __m512i lane_numbers() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
    static __m256i to_half(Vec v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // As from_float<BFloat16>.
    static __m256i to_bfloat16(Vec v) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i kept = _mm512_srli_epi32(bits, 16);
        const __m512i half = _mm512_add_epi32(_mm512_and_si512(kept, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
        const __m512i number = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
        const __m512i nan = _mm512_or_si512(kept, _mm512_set1_epi32(0x40));
        const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, number, nan));
    }
};

}  // namespace
}  // namespace hvd_compress::cpu::avx512
