// The loops of threshold selection; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"
#include "hvd_compress/threshold.hpp"

namespace hvd_compress::cpu {

struct ThresholdKernels {
    // Writes the elements with a key of at least `low`, at most `limit` of them, and perhaps kLanes of no meaning
    // behind them; returns how many. By dtype.
    using Select = std::int64_t (*)(const void* x, Place place, std::uint32_t low, std::int64_t limit,
                                    std::int32_t* indices, float* values);
    Select select[3];

    // The same of what is accumulated (threshold.hpp) on its way to `out`, where, and in momentum.out, zeros take the
    // places of what was found. `past_caches` is for `out` without momentum. By dtype of grad.
    using AccumulateSelect = std::int64_t (*)(const void* grad, const float* residual, Momentum momentum, float* out,
                                              Place place, bool past_caches, std::uint32_t low, std::int32_t* indices,
                                              float* values);
    AccumulateSelect accumulate_select[3];
};

HVD_COMPRESS_TABLE(ThresholdKernels, threshold_kernels)

}  // namespace hvd_compress::cpu
