// The loops of sign compression, each over a range of elements; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

struct SignKernels {
    // One block of sign.hpp: writes out = corrected and its bits, returns the sum of its magnitudes. A place starts at
    // a multiple of 8. By dtype of grad, and whether residual and out are fp32 (0) or of that dtype (1).
    using Correct = double (*)(const void* grad, const void* residual, void* out, Place place, bool past_caches,
                               std::uint8_t* bits);
    Correct correct[3][2];

    // The same where corrected of the step before is kept, of which `kept_scale` was sent.
    using CorrectKept = double (*)(const void* grad, const void* kept, void* out, Place place, bool past_caches,
                                   std::uint8_t* bits, float kept_scale);
    CorrectKept correct_kept[3][2];

    // x -= scale where x counts as positive, else x += scale. By dtype.
    using SubtractSent = void (*)(void* x, Place place, float scale);
    SubtractSent subtract_sent[3];

    // out += step where the bit is 1, out -= step where it is 0. A place starts at a multiple of 8. By dtype.
    using Add = void (*)(const std::uint8_t* bits, void* out, Place place, float step);
    Add add[3];
};

HVD_COMPRESS_TABLE(SignKernels, sign_kernels)

}  // namespace hvd_compress::cpu
