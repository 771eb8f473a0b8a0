// The loops of threshold selection; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

struct ThresholdKernels {
    // Writes the elements with a key of at least `low`, at most `limit` of them, and perhaps kLanes of no meaning
    // behind them; returns how many. By dtype.
    using Select = std::int64_t (*)(const void* x, Place place, std::uint32_t low, std::int64_t limit,
                                    std::int32_t* indices, float* values);
    Select select[3];
};

HVD_COMPRESS_TABLE(ThresholdKernels, threshold_kernels)

}  // namespace hvd_compress::cpu
