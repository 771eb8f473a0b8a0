// Error feedback without a compressor: corrected = residual + gradient.
//
// The twins on CPU and CUDA have one signature because both are declared from one type. All pointers of a twin,
// results included, point to memory of its device, so that a CUDA twin never has to synchronise.
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// out[i] = residual[i] + grad[i]; *finite = 1 where every out[i] is finite, else 0.
//
// residual and out have the same dtype: fp32, or that of grad. The sum is taken in fp32 and rounded once, to nearest
// even, if that dtype has 16 bits. `out` may be `residual` or `grad` itself, but may not overlap either in part.
using Accumulate = Status(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int32_t* finite,
                          Stream stream) noexcept;

namespace cpu {
Accumulate accumulate;
}  // namespace cpu

namespace cuda {
Accumulate accumulate;
}  // namespace cuda

}  // namespace hvd_compress
