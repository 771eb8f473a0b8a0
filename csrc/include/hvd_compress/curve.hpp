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

// What an element of the bin adds to ||x||^2: the mean square where magnitudes are spread evenly between its edges. Not
// finite where the element is not.
HVD_COMPRESS_HD inline double curve_square(std::int64_t bin) {
    if (bin == 0) return 0.0;
    const std::uint32_t largest = 0x7f7fffffu;
    const std::uint32_t first = static_cast<std::uint32_t>(bin) << kCurveShift;
    const std::uint32_t after = first + (1u << kCurveShift);
    const auto low = static_cast<double>(from_bits(first));
    const auto high = static_cast<double>(from_bits(first <= largest && after > largest ? largest : after));
    return (low * low + low * high + high * high) / 3.0;
}

// Squares are added in an order that is part of the interface, from the largest magnitudes on: the bins of a part one
// after the other, so the parts of a row, and so the rows.
constexpr std::int64_t kCurvePart = 64;
constexpr std::int64_t kCurveRow = 32;                                      // parts
constexpr std::int64_t kCurveRows = kCurveBins / (kCurvePart * kCurveRow);  // 32

// Replaces each x by the sum of those before it; returns the sum of all.
template <class T>
HVD_COMPRESS_HD inline T sums_before(T* x, std::int64_t count) {
    T sum{0};
    for (std::int64_t i = 0; i < count; ++i) {
        const T own = x[i];
        x[i] = sum;
        sum += own;
    }
    return sum;
}

// The share of a sum, which may not pass that where the next part begins: sums of parts are rounded in another order.
HVD_COMPRESS_HD inline double curve_share(double sum, double next, double all) {
    return (sum < next ? sum : next) / all;
}

// counts[b] and shares[b], b in 0..kCurveBins: how many elements the b bins of the largest magnitudes hold, and what
// part of ||x||^2. counts end with about n, with exactly n where all elements are counted; both ascend. shares are NaN
// from the first element that is not finite on. Where all of x is zero, all counts and shares but the first are 1.
using MagnitudeCurve = Status(ConstArray x, std::int64_t n, std::int64_t* counts, double* shares, Workspace workspace,
                              Stream stream) noexcept;

namespace cpu {
CurveWorkspaceBytes curve_workspace_bytes;
MagnitudeCurve magnitude_curve;
}  // namespace cpu

namespace cuda {
CurveWorkspaceBytes curve_workspace_bytes;
MagnitudeCurve magnitude_curve;
}  // namespace cuda

}  // namespace hvd_compress
