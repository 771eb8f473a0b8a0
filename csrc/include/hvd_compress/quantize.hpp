// Stochastic quantisation: QSGD (Alistarh et al. 2017, Eq. 2-3) and TernGrad (Wen et al. 2017, Eq. 3).
//
// An element v becomes the whole number q with the sign of v and |q| = (t + r) >> 16, where t = floor(|v| * (2^16 *
// levels / norm)), at most 2^16 * levels, is |v| in units of 2^-16 levels, and r are 16 random bits: the expected value
// of q * norm / levels is v, to 2^-16 of a level. q is stored as a two's complement number of `bits` bits: element i at
// bit (i * bits) % 8 of byte i * bits / 8. What pads the last byte is 0.
//
// r comes from Philox4x32-7 (Salmon et al. 2011) with the key (seed, seed >> 32) and the counter (block, block >> 32,
// step, bucket). In each group of 128 elements, element i has block = i / 128 * 16 + i % 16, and of its word i / 16 % 4
// the lower half where i / 64 is even, the upper half where it is odd. So r depends neither on threads nor on the width
// of vectors.
#pragma once

#include "hvd_compress/numeric.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

struct RandomKey {
    std::uint64_t seed;
    std::uint32_t step, bucket;
};

enum class Norm : int { kL2 = 0, kMax = 1 };  // of QSGD, of TernGrad

// |q| is at most this: 1, 7 and 127 for 2, 4 and 8 bits.
HVD_COMPRESS_HD constexpr std::int32_t quantize_levels(int bits) noexcept { return (1 << (bits - 1)) - 1; }

HVD_COMPRESS_HD constexpr std::int64_t quantized_bytes(std::int64_t n, int bits) noexcept {
    return n / (8 / bits) + (n % (8 / bits) != 0);
}

using QuantizeWorkspaceBytes = std::size_t(std::int64_t n) noexcept;

// corrected = residual + grad as in feedback.hpp; *norm of corrected, its squares summed in fp64 in the order of
// sign.hpp and its root rounded to fp32; packed = q; out = corrected - q * (*norm / levels), rounded to its dtype. A
// norm that is not finite, or below 2^-88, makes every q 0, and out = corrected.
using QuantizeAccumulate = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, int bits, Norm kind,
                                  RandomKey key, std::uint8_t* packed, float* norm, Workspace workspace,
                                  Stream stream) noexcept;

// out[i] += weight * (q * (*norm / levels)); products are rounded to fp32, the sum to the dtype of out.
using QuantizeAdd = Status(const std::uint8_t* packed, const float* norm, Array out, std::int64_t n, int bits,
                           float weight, Stream stream) noexcept;

namespace cpu {
QuantizeWorkspaceBytes quantize_workspace_bytes;
QuantizeAccumulate quantize_accumulate;
QuantizeAdd quantize_add;
}  // namespace cpu

namespace cuda {
QuantizeWorkspaceBytes quantize_workspace_bytes;
QuantizeAccumulate quantize_accumulate;
QuantizeAdd quantize_add;
}  // namespace cuda

}  // namespace hvd_compress
