// The loop of scale(); one table a level of vector instructions.
#pragma once

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

struct ScaleKernels {
    // x = factor * x; returns whether all of it is finite. By dtype.
    bool (*scale[3])(void* x, float factor, Place place);
};

HVD_COMPRESS_TABLE(ScaleKernels, scale_kernels)

}  // namespace hvd_compress::cpu
