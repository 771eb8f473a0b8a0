// The vectors of the level for which this source file is compiled: HVD_COMPRESS_LEVEL is avx512, avx2 or portable.
//
// Such files define everything within namespace HVD_COMPRESS_LEVEL, or the linker could take the code of one level for
// another, and use no inline function of the standard library, for the same reason.
#pragma once

#define HVD_COMPRESS_LEVEL_avx512 2
#define HVD_COMPRESS_LEVEL_avx2 1
#define HVD_COMPRESS_LEVEL_portable 0
#define HVD_COMPRESS_LEVEL_NUMBER_OF(level) HVD_COMPRESS_LEVEL_##level
#define HVD_COMPRESS_LEVEL_NUMBER(level) HVD_COMPRESS_LEVEL_NUMBER_OF(level)

#if HVD_COMPRESS_LEVEL_NUMBER(HVD_COMPRESS_LEVEL) == 2
#include "avx512.hpp"
#elif HVD_COMPRESS_LEVEL_NUMBER(HVD_COMPRESS_LEVEL) == 1
#include "avx2.hpp"
#else
#include "portable.hpp"
#endif
