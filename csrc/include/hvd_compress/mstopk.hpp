// MSTopk: the threshold of the k largest by bisection (Shi et al. 2021, Algorithm 1).
#pragma once

#include "hvd_compress/sum.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

constexpr int kMstopkMaxRounds = 48;  // so that the middle of the middles is exact in fp64

// The least key that reaches a threshold, 0 <= threshold <= FLT_MAX.
HVD_COMPRESS_HD inline std::uint32_t key_reaching(double threshold) {
    const auto nearest = static_cast<float>(threshold);
    return to_bits(nearest) + (static_cast<double>(nearest) < threshold ? 1 : 0);
}

using MstopkWorkspaceBytes = std::size_t(std::int64_t n, std::int64_t k) noexcept;

// Selected are all elements that reach a threshold which at most k reach, the lowest that was tried, and of those that
// reach the highest tried of the others, the first ones, until there are k. Each of the rounds tries the middle of what
// is left of [mean, top] of |x|, mean + part * (top - mean) in fp64; the mean's sum is taken in the order of sum.hpp.
// If an element is not finite, the k largest are selected as by Topk.
//
// indices[0..k), ascending, and values[0..k), in the dtype of x; 0 <= k <= n, 1 <= rounds <= kMstopkMaxRounds.
using Mstopk = Status(ConstArray x, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, void* values,
                      Workspace workspace, Stream stream) noexcept;

// corrected = residual + grad as in feedback.hpp; what Mstopk selects of it goes to indices and values, and
// out = corrected with those entries 0. values + out = corrected exactly, since fp32 holds every dtype.
using MstopkAccumulate = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k,
                                int rounds, std::int32_t* indices, float* values, Workspace workspace,
                                Stream stream) noexcept;

namespace cpu {
MstopkWorkspaceBytes mstopk_workspace_bytes;
Mstopk mstopk;
MstopkAccumulate mstopk_accumulate;
}  // namespace cpu

namespace cuda {
MstopkWorkspaceBytes mstopk_workspace_bytes;
Mstopk mstopk;
MstopkAccumulate mstopk_accumulate;
}  // namespace cuda

}  // namespace hvd_compress
