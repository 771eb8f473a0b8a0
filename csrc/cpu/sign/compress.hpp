// Both halves of sign compression with error feedback: correct, pack and sum; then take away what is sent.
#pragma once

#include <algorithm>
#include <cmath>

#include "hvd_compress/numeric.hpp"
#include "hvd_compress/sign.hpp"

namespace hvd_compress::cpu {

// Up to 8 elements: writes the error-fed gradient, adds its magnitudes to the lanes, returns its signs.
template <class G, class R>
std::uint8_t correct_byte(const G* grad, const R* residual, R* out, std::int64_t count, double* lanes) {
    static_assert(kSumLanes == 8, "one lane for each bit of a byte");
    std::uint32_t byte = 0;
    for (std::int64_t j = 0; j < count; ++j) {
        out[j] = corrected(grad[j], residual[j]);
        const float value = to_float(out[j]);
        lanes[j] += std::fabs(value);
        byte |= static_cast<std::uint32_t>(counts_as_positive(value)) << j;
    }
    return static_cast<std::uint8_t>(byte);
}

inline double add_lanes(double* lanes) {
    for (std::int64_t width = kSumLanes / 2; width > 0; width /= 2) {
        for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    return lanes[0];
}

// One block of at most kSumBlock elements that starts at a whole byte; returns the sum of its magnitudes.
template <class G, class R>
double correct_block(const G* grad, const R* residual, R* out, std::int64_t n, std::uint8_t* bits) {
    static_assert(kSumBlock % 8 == 0, "blocks start at whole bytes");
    double lanes[kSumLanes] = {};
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) bits[i / 8] = correct_byte(grad + i, residual + i, out + i, 8, lanes);
    if (i < n) bits[i / 8] = correct_byte(grad + i, residual + i, out + i, n - i, lanes);
    return add_lanes(lanes);
}

// Fills one sum for each block; blocks do not depend on one another.
template <class G, class R>
void correct_blocks(const G* grad, const R* residual, R* out, std::int64_t n, std::uint8_t* bits, double* sums) {
    for (std::int64_t start = 0; start < n; start += kSumBlock) {
        const std::int64_t length = std::min(kSumBlock, n - start);
        sums[start / kSumBlock] = correct_block(grad + start, residual + start, out + start, length, bits + start / 8);
    }
}

template <class R>
void subtract_sent(R* out, std::int64_t n, float scale) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float value = to_float(out[i]);
        out[i] = from_float<R>(value - (counts_as_positive(value) ? scale : -scale));
    }
}

}  // namespace hvd_compress::cpu
