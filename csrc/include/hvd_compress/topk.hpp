// Exact, deterministic selection of the k elements of largest magnitude.
//
// Order: by magnitude; Inf comes before every finite value, NaN before Inf, and all NaN are equal.
// Equal magnitudes: the lower index first. Indices come out ascending, whatever the number of threads.
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

using TopkWorkspaceBytes = std::size_t(std::int64_t n, std::int64_t k) noexcept;

// indices[0..k) and values[0..k), in the dtype of x, of the k largest of x[0..n); 0 <= k <= n <= kMaxNumel.
using Topk = Status(ConstArray x, std::int64_t n, std::int64_t k, std::int32_t* indices, void* values,
                    Workspace workspace, Stream stream) noexcept;

// corrected = residual + grad as in feedback.hpp; the k largest of it go to indices and values, and
// out = corrected with those entries 0. values + out = corrected exactly, since fp32 holds every dtype.
using TopkAccumulate = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k,
                              std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept;

namespace cpu {
TopkWorkspaceBytes topk_workspace_bytes;
Topk topk;
TopkAccumulate topk_accumulate;
}  // namespace cpu

namespace cuda {
// How the k largest are found: one block with a queue, for few elements; one pass from a sampled threshold on, and if
// it was wrong two more; two passes of a radix selection. kAuto takes what is reckoned to be fastest. Results are the
// same.
enum class TopkWay : int { kAuto = 0, kQueue = 1, kBracket = 2, kRadix = 3 };

// For tests and measurements: what every later call of the process does, where it can.
void topk_force(TopkWay way) noexcept;

TopkWorkspaceBytes topk_workspace_bytes;
Topk topk;
TopkAccumulate topk_accumulate;
}  // namespace cuda

}  // namespace hvd_compress
