// The loops of block quantisation, each over a range of elements; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"
#include "hvd_compress/blocks.hpp"

namespace hvd_compress::cpu {

// What all blocks of a call are quantised by, and where to. With `past_caches` vectors of `rest` are aligned to lines.
struct BlockTarget {
    BlockFormat format;
    const RandomKey* key;
    std::uint8_t* codes;
    std::uint16_t* units;
    float* rest;  // null where what is lost is not kept
    bool past_caches;
};

// The codes of other ranks, and where this one's summand comes among them.
struct BlockSummands {
    const BlockCodes* others;
    int count, place;
};

// Places start at a multiple of kMaxBlock.
struct BlockKernels {
    // v = grad + residual, which may be null. By dtype of grad.
    using Quantize = void (*)(const void* grad, const float* residual, Place place, const BlockTarget& target);
    Quantize quantize[3];

    // v = own + others. By dtype of own.
    using SumQuantize = void (*)(const void* own, const BlockSummands& summands, Place place,
                                 const BlockTarget& target);
    SumQuantize sum_quantize[3];

    // out = weight * sum; whether all of it is finite. By dtype of out.
    using Sum = bool (*)(const BlockCodes* sources, int count, BlockFormat format, float weight, void* out, Place place,
                         bool past_caches);
    Sum sum[3];
};

HVD_COMPRESS_TABLE(BlockKernels, block_kernels)

}  // namespace hvd_compress::cpu
