// The loops that count magnitudes; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

struct CurveKernels {
    // Adds the elements of a place to the counts of curve.hpp. By dtype.
    using CountAll = void (*)(const void* x, Place place, Count* counts);
    CountAll count_all[3];

    // The same of all elements with a key of at least `low`, the first of a bin, to `tail`, and of the chosen among the
    // others to `bulk`, whose counts from that bin on have no meaning. A place begins at a multiple of kCurveGroup. By
    // dtype.
    using CountTail = void (*)(const void* x, Place place, Key low, Count* bulk, Count* tail);
    CountTail count_tail[3];
};

HVD_COMPRESS_TABLE(CurveKernels, curve_kernels)

}  // namespace hvd_compress::cpu
