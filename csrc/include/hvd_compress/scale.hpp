// A sum made an average, in one pass: x = factor * x, and is all of it finite?
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// x[i] = factor * x[i]; *finite = 1 where every x[i] is finite then, else 0.
//
// The product is taken in fp32 and rounded once, to nearest even, if x has 16 bits.
using Scale = Status(Array x, std::int64_t n, float factor, std::int32_t* finite, Stream stream) noexcept;

namespace cpu {
Scale scale;
}  // namespace cpu

namespace cuda {
Scale scale;
}  // namespace cuda

}  // namespace hvd_compress
