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

// velocity_out[i] = factor * velocity[i] + grad[i], where `velocity` is not null.
struct Momentum {
    float factor;
    const float* velocity;
    float* out;
};

// ThresholdCount of corrected = residual + grad or, with a velocity, residual + velocity_out, on its way to `out`.
// Products and sums are rounded to fp32 one by one. `out` and momentum.out overlap neither each other nor an input.
// Some of the elements that reach tau are 0 already in both: ThresholdTake must follow.
using ThresholdAccumulate = Status(ConstArray grad, const float* residual, Momentum momentum, float* out,
                                   std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                                   Stream stream) noexcept;

// ThresholdSelect after ThresholdAccumulate: x + values is corrected, and x and, where it is not null, velocity_out
// are 0 at the indices.
using ThresholdTake = Status(float* x, float* velocity_out, std::int64_t n, float tau, std::int64_t count,
                             std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept;

namespace cpu {
ThresholdWorkspaceBytes threshold_workspace_bytes;
ThresholdCount threshold_count;
ThresholdSelect threshold_select;
ThresholdAccumulate threshold_accumulate;
ThresholdTake threshold_take;
}  // namespace cpu

namespace cuda {
ThresholdWorkspaceBytes threshold_workspace_bytes;
ThresholdCount threshold_count;
ThresholdSelect threshold_select;
ThresholdAccumulate threshold_accumulate;
ThresholdTake threshold_take;
}  // namespace cuda

}  // namespace hvd_compress
