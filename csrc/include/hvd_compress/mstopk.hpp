// MSTopk: the threshold of the k largest by bisection (Shi et al. 2021, Algorithm 1); hvd_compress/native/mstopk.py
// says what exactly is selected.
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

using MstopkWorkspaceBytes = std::size_t(std::int64_t n) noexcept;

// *sum = that of all |x|, in fp64, in the order of sum.hpp.
using MagnitudeSum = Status(ConstArray x, std::int64_t n, double* sum, Workspace workspace, Stream stream) noexcept;

// indices[0..k), ascending, and values[0..k), in the dtype of x; 0 <= k <= n, 1 <= rounds <= kMstopkMaxRounds.
using Mstopk = Status(ConstArray x, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, void* values,
                      Workspace workspace, Stream stream) noexcept;

namespace cpu {
MstopkWorkspaceBytes mstopk_workspace_bytes;
MagnitudeSum magnitude_sum;  // the rest is made of other kernels, see mstopk.py
}  // namespace cpu

namespace cuda {
MstopkWorkspaceBytes mstopk_workspace_bytes;
Mstopk mstopk;
}  // namespace cuda

}  // namespace hvd_compress
