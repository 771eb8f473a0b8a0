// A sum made an average, in one pass: x = factor * x, and is all of it finite?
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// x[i] = factor * x[i]; *finite is whether every x[i] is finite then.
//
// The product is taken in fp32 and rounded once, to nearest even, if x has 16 bits.
namespace cpu {
Status scale(Array x, float factor, std::int64_t n, bool* finite) noexcept;
}  // namespace cpu

}  // namespace hvd_compress
