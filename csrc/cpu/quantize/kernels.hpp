// The loops of stochastic quantisation, each over a range of elements; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"
#include "hvd_compress/quantize.hpp"

namespace hvd_compress::cpu {

inline constexpr std::int64_t kGroup = 128;  // elements that draw their random words together

// What one call quantises with: |v| is |v| * scale in units of 2^-16 levels, and q stands for q * unit.
struct Quantizer {
    float scale, unit;
    int bits;
    RandomKey key;
};

struct QuantizeKernels {
    // One block of sign.hpp: writes out = corrected, returns the sum of its squares (kL2) or its largest magnitude
    // (kMax; NaN if one is). By dtype of grad, and whether residual and out are fp32 (0) or of that dtype (1).
    using Correct = double (*)(const void* grad, const void* residual, void* out, Place place, bool past_caches,
                               Norm kind);
    Correct correct[3][2];

    // Packs x, and leaves in it what is lost. A place starts at a multiple of kGroup. By dtype.
    using Quantize = void (*)(void* x, Place place, const Quantizer& quantizer, std::uint8_t* packed);
    Quantize quantize[3];

    // out += weight * (q * unit). A place starts at a multiple of kGroup. By dtype.
    using Add = void (*)(const std::uint8_t* packed, void* out, Place place, int bits, float unit, float weight);
    Add add[3];
};

HVD_COMPRESS_TABLE(QuantizeKernels, quantize_kernels)

}  // namespace hvd_compress::cpu
