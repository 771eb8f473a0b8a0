// Element types, their conversion to and from fp32 (round to nearest even), and their order by magnitude.
//
// Host and device code share these, so that twins agree to the bit; where a GPU has an instruction for the same, its
// code has that, whose NaN is another one. No branch depends on data: loops over them vectorise.
#pragma once

#include <cstdint>
#include <cstring>

// Files that are compiled for different vector instructions share these functions, too. Inlined always, none of them is
// ever code of its own, which the linker could take from the wrong file.
#ifdef __CUDACC__
#define HVD_COMPRESS_HD __host__ __device__ __attribute__((always_inline))
#else
#define HVD_COMPRESS_HD __attribute__((always_inline))
#endif

namespace hvd_compress {

struct Half {
    std::uint16_t bits;
};

struct BFloat16 {
    std::uint16_t bits;
};

HVD_COMPRESS_HD inline std::uint32_t to_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

HVD_COMPRESS_HD inline float from_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

HVD_COMPRESS_HD inline float to_float(float value) { return value; }

HVD_COMPRESS_HD inline float to_float(BFloat16 value) { return from_bits(std::uint32_t{value.bits} << 16); }

HVD_COMPRESS_HD inline float to_float(Half value) {
#ifdef __CUDA_ARCH__
    float exact;  // one instruction, where what follows is ten
    asm("cvt.f32.f16 %0, %1;" : "=f"(exact) : "h"(value.bits));
    return exact;
#else
    const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16;
    const std::uint32_t magnitude = value.bits & 0x7fffu;
    // Exponents are biased by 15 there and by 127 here; Inf and NaN have all exponent bits set in both.
    const std::uint32_t rebias = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;
    const std::uint32_t normal = (magnitude << 13) + rebias;
    // A subnormal is a whole number of 2^-24, which fp32 holds as a normal number.
    const std::uint32_t subnormal = to_bits(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
    return from_bits(sign | (magnitude < 0x0400u ? subnormal : normal));
#endif
}

template <class T>
HVD_COMPRESS_HD inline T from_float(float value);

template <>
HVD_COMPRESS_HD inline float from_float<float>(float value) {
    return value;
}

template <>
HVD_COMPRESS_HD inline BFloat16 from_float<BFloat16>(float value) {
#ifdef __CUDA_ARCH__
    BFloat16 rounded_by_machine;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded_by_machine.bits) : "f"(value));
    return rounded_by_machine;
#else
    const std::uint32_t bits = to_bits(value);
    // Half a unit of the last place kept, or just less where that place is even: ties go to even, a carry to Inf.
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x0040u;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return BFloat16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
#endif
}

template <>
HVD_COMPRESS_HD inline Half from_float<Half>(float value) {
#ifdef __CUDA_ARCH__
    Half rounded_by_machine;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded_by_machine.bits) : "f"(value));
    return rounded_by_machine;
#else
    const std::uint32_t bits = to_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t two_to_16 = 143u << 23;  // it and all above it, finite or not, is Inf
    const std::uint32_t clamped = magnitude < two_to_16 ? magnitude : two_to_16;
    const std::uint32_t normal = (clamped - (112u << 23) + 0x0fffu + ((clamped >> 13) & 1u)) >> 13;
    // Near 0.5 one unit of fp32's last place is 2^-24, the unit of subnormals here: the addition rounds to it.
    const std::uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    const std::uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    return Half{static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000u ? quiet_nan : finite))};
#endif
}

// What a kernel must know of an element type: `Key` orders by magnitude, as the bits without the sign do by
// themselves, and a key of kInfinityKey or more is not finite.
//
// All NaN have one key. Their bits say nothing that holds: which of two NaN a sum passes on is up to the compiler on
// the CPU, and CUDA makes a new one.
template <class T>
struct Traits;

HVD_COMPRESS_HD inline std::uint32_t key_of_magnitude(std::uint32_t magnitude, std::uint32_t infinity) {
    return magnitude > infinity ? infinity + 1 : magnitude;
}

template <>
struct Traits<float> {
    using Key = std::uint32_t;
    static constexpr Key kInfinityKey = 0x7f800000u;
    HVD_COMPRESS_HD static Key key(float value) { return key_of_magnitude(to_bits(value) & 0x7fffffffu, kInfinityKey); }
};

template <>
struct Traits<Half> {
    using Key = std::uint32_t;
    static constexpr Key kInfinityKey = 0x7c00u;
    HVD_COMPRESS_HD static Key key(Half value) { return key_of_magnitude(value.bits & 0x7fffu, kInfinityKey); }
};

template <>
struct Traits<BFloat16> {
    using Key = std::uint32_t;
    static constexpr Key kInfinityKey = 0x7f80u;
    HVD_COMPRESS_HD static Key key(BFloat16 value) { return key_of_magnitude(value.bits & 0x7fffu, kInfinityKey); }
};

// The error-fed gradient in the residual's type R: added in fp32, rounded once.
template <class R, class G>
HVD_COMPRESS_HD inline R corrected(G grad, R residual) {
    return from_float<R>(to_float(residual) + to_float(grad));
}

}  // namespace hvd_compress
