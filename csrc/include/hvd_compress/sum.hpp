// Sums of many elements in fp64, in an order that is part of the interface: twins and threads agree to the bit.
//
// Element i goes to lane i % kSumLanes of block i / kSumBlock, and the sum of block b to lane b % kBlockLanes. Within a
// lane what comes first is added first; lanes are added pairwise, lane j and lane j + width, for width = half of them,
// a quarter, and so on to 1.
#pragma once

#include "hvd_compress/numeric.hpp"

namespace hvd_compress {

constexpr std::int64_t kSumBlock = 4096;
constexpr std::int64_t kSumLanes = 64;
constexpr std::int64_t kBlockLanes = 1024;

HVD_COMPRESS_HD inline double add_lanes(double* lanes, std::int64_t count) {
    for (std::int64_t width = count / 2; width > 0; width /= 2) {
        for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    return lanes[0];
}

inline double add_blocks(const double* sums, std::int64_t count) {
    double lanes[kBlockLanes] = {};
    for (std::int64_t block = 0; block < count; ++block) lanes[block % kBlockLanes] += sums[block];
    return add_lanes(lanes, kBlockLanes);
}

}  // namespace hvd_compress
