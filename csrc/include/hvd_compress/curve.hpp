// How much of ||x||^2 the k largest magnitudes hold, for every k: a histogram of magnitudes.
#pragma once

#include "hvd_compress/sample.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

// Bin b counts the elements whose bits, without the sign, are b << kCurveShift or up to 2^kCurveShift - 1 more: 256
// bins to each factor of two.
constexpr int kCurveShift = 15;
constexpr std::int64_t kCurveBins = std::int64_t{1} << (31 - kCurveShift);

// Of at most so many elements each is counted.
constexpr std::int64_t kCurveAll = std::int64_t{1} << 20;

// Of more, only the largest are, about kCurveTail of all, on which small ratios depend; of the others a quarter, each
// of them counted as four. Their bins are full, so that this costs no accuracy to speak of.
constexpr double kCurveTail = 1.0 / 64;

// Of the others, those are counted whose place within their group is chosen: four neighbours of each sixteen, so that
// rows of a matrix are met alike, and other ones in each of a group's four sixteens. No pattern in memory has the
// hash's.
constexpr std::int64_t kCurveGroup = 64;
HVD_COMPRESS_HD inline int curve_turn(std::int64_t group) {
    return static_cast<int>(scattered(static_cast<std::uint32_t>(group)) >> 30);
}
HVD_COMPRESS_HD inline bool is_chosen(std::int64_t i) {
    const auto sixteenth = static_cast<int>(i / 16 % 4), place = static_cast<int>(i % 16);
    return place / 4 == (curve_turn(i / kCurveGroup) + sixteenth) % 4;
}

using CurveWorkspaceBytes = std::size_t(std::int64_t n) noexcept;

// counts[0..kCurveBins) of x; they add up to about n, to exactly n where all elements are counted.
using MagnitudeCounts = Status(ConstArray x, std::int64_t n, std::int64_t* counts, Workspace workspace,
                               Stream stream) noexcept;

namespace cpu {
CurveWorkspaceBytes curve_workspace_bytes;
MagnitudeCounts magnitude_counts;
}  // namespace cpu

namespace cuda {
CurveWorkspaceBytes curve_workspace_bytes;
MagnitudeCounts magnitude_counts;
}  // namespace cuda

}  // namespace hvd_compress
