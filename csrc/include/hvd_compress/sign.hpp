// One bit an element with one scale: EF-signSGD (Karimireddy et al. 2019, Algorithm 1).
//
// Bit i % 8 of byte i / 8 is 1 where element i counts as +1: every value that is not below zero, so +0, -0 and NaN too.
// The bits that pad the last byte are 0.
#pragma once

#include "hvd_compress/sum.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

HVD_COMPRESS_HD constexpr std::int64_t sign_bytes(std::int64_t n) noexcept { return n / 8 + (n % 8 != 0); }

using SignWorkspaceBytes = std::size_t(std::int64_t n) noexcept;

// corrected = residual + grad as in feedback.hpp; *scale = mean |corrected|, 0 for n = 0 and non-finite exactly if an
// element is; bits = signs of corrected; out = corrected -+ *scale, rounded to its dtype.
using SignAccumulate = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::uint8_t* bits,
                              float* scale, Workspace workspace, Stream stream) noexcept;

// The same for one who keeps corrected and scale instead of what is left of them, and so in one pass: 12.125 bytes an
// fp32 element (read grad, read kept, write out, one bit) instead of 20.125. kept is the `out` of the step before and
// *kept_scale its scale: residual = kept -+ *kept_scale, rounded to its dtype, as sign_accumulate would have left it;
// corrected = residual + grad; out = corrected. bits and scale are equal to the bit to those of sign_accumulate.
// `scale` may be `kept_scale`; before the first step kept is 0 and so is *kept_scale.
using SignAccumulateKept = Status(ConstArray grad, ConstArray kept, const float* kept_scale, Array out, std::int64_t n,
                                  std::uint8_t* bits, float* scale, Workspace workspace, Stream stream) noexcept;

// out[i] += +-(weight * *scale); the product is rounded to fp32, the sum to the dtype of out.
using SignAdd = Status(const std::uint8_t* bits, const float* scale, Array out, std::int64_t n, float weight,
                       Stream stream) noexcept;

namespace cpu {
SignWorkspaceBytes sign_workspace_bytes;
SignAccumulate sign_accumulate;
SignAccumulateKept sign_accumulate_kept;
SignAdd sign_add;
}  // namespace cpu

namespace cuda {
SignWorkspaceBytes sign_workspace_bytes;
SignAccumulate sign_accumulate;
SignAccumulateKept sign_accumulate_kept;
SignAdd sign_add;
}  // namespace cuda

}  // namespace hvd_compress
