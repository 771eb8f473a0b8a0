// The loop of MSTopk: one pass that sums magnitudes and sets candidates apart; one table a level of vector
// instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"
#include "../topk/kernels.hpp"

namespace hvd_compress::cpu {

// Of a block of sum.hpp: its sum of magnitudes, and its largest key, which for NaN is any above that of Inf.
struct Magnitudes {
    double sum;
    Key largest;
};

struct MstopkKernels {
    // As TopkKernels::Collect and AccumulateCollect, of a place that is one block of the sum.
    using Collect = std::int64_t (*)(const void* x, Place block, Key low, Candidates found, Magnitudes* of_block);
    Collect collect[2][3];
    using AccumulateCollect = std::int64_t (*)(const void* grad, const void* residual, void* out, Place block,
                                               bool past_caches, Key low, Candidates found, Magnitudes* of_block);
    AccumulateCollect accumulate_collect[2][3][2];
};

HVD_COMPRESS_TABLE(MstopkKernels, mstopk_kernels)

}  // namespace hvd_compress::cpu
