// Selection of all elements whose magnitude reaches a threshold.
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

using ThresholdWorkspaceBytes = std::size_t(std::int64_t n) noexcept;

// *count = how many elements of x have |x[i]| >= tau; NaN have. tau is not NaN. The workspace then holds what
// ThresholdSelect needs, the elements themselves among it where there are few.
using ThresholdCount = Status(ConstArray x, std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                              Stream stream) noexcept;

// indices[0..count), ascending, and values[0..count), in the dtype of x, of these elements. x, n, tau, count and
// workspace are those of ThresholdCount.
using ThresholdSelect = Status(ConstArray x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices,
                               void* values, Workspace workspace, Stream stream) noexcept;

namespace cpu {
ThresholdWorkspaceBytes threshold_workspace_bytes;
ThresholdCount threshold_count;
ThresholdSelect threshold_select;
}  // namespace cpu

namespace cuda {
ThresholdWorkspaceBytes threshold_workspace_bytes;
ThresholdCount threshold_count;
ThresholdSelect threshold_select;
}  // namespace cuda

}  // namespace hvd_compress
