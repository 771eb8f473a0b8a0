// The loop of error feedback; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

struct FeedbackKernels {
    // out = residual + grad; returns whether all of it is finite. By dtype of grad, and whether residual and out are
    // fp32 (0) or of that dtype (1).
    using Accumulate = bool (*)(const void* grad, const void* residual, void* out, Place place, bool past_caches);
    Accumulate accumulate[3][2];

    Level level;  // of this table, for tests
};

HVD_COMPRESS_TABLE(FeedbackKernels, feedback_kernels)

}  // namespace hvd_compress::cpu
