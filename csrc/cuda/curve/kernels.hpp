// Counts of magnitudes. Most lie within a window of bins that a block counts in its shared memory.
#pragma once

#include "../sample/kernels.hpp"
#include "hvd_compress/curve.hpp"

namespace hvd_compress::cuda {

constexpr int kWindow = 8192;     // 32 factors of two
constexpr int kAboveTail = 2048;  // of them, from the first bin of the tail on

struct ClearCounts {
    static constexpr int kThreads = 256;
    struct Shared {};
    std::uint32_t *bins, *sample;
    Key* low;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t i = block.index * kThreads + t;
            if (i < kCurveBins) bins[i] = 0;
            if (i < kSampleBins) sample[i] = 0;
            if (i == 0) *low = 0;
        });
    }
};

template <class T>
struct CountMagnitudes {
    static constexpr int kThreads = 256;
    struct Shared {
        std::uint32_t window[kWindow];
        std::uint32_t scratch[32];
    };
    Plain<T> source;
    const Key* low;  // of the tail; 0: each element is counted
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Key first_of_tail = *low >> kCurveShift;
        // Without a tail, what trained gradients have: from 2^-24 to 2^8.
        const Key end = first_of_tail != 0 ? first_of_tail + kAboveTail : (127 + 8) << (23 - kCurveShift);
        const Key last = end < kCurveBins ? end : static_cast<Key>(kCurveBins);
        const Key start = last > kWindow ? last - kWindow : 0;
        typename B::template Each<std::uint32_t> zeros;
        block.each([&](int t) {
            zeros[t] = 0;
            for (int i = t; i < kWindow; i += kThreads) shared.window[i] = 0;
        });
        block.sync();
        block.each([&](int t) {
            const std::int64_t stride = block.count * kThreads * kWide;
            for (std::int64_t i = (block.index * kThreads + t) * kWide; i < source.n; i += stride) {
                float v[kWide];
                source.read(i, v);
                const bool chosen = is_chosen(i);  // and so are its neighbours, being four from a multiple of four on
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const Key bin = (to_bits(v[j]) & 0x7fffffffu) >> kCurveShift;
                    if (i + j >= source.n || (bin < first_of_tail && !chosen)) continue;
                    if (bin == 0) {
                        ++zeros[t];  // there may be many, which would wait for each other
                    } else if (bin - start < kWindow) {
                        atomic_add(&shared.window[bin - start], 1u);
                    } else {
                        atomic_add(&bins[bin], 1u);
                    }
                }
            }
        });
        const std::uint32_t all_zeros = block.exclusive_sum(zeros, shared.scratch);  // a sync() of the window, too
        block.each([&](int t) {
            if (t == 0 && all_zeros != 0) atomic_add(&bins[0], all_zeros);
            for (int i = t; i < kWindow; i += kThreads) {
                if (shared.window[i] != 0) atomic_add(&bins[start + i], shared.window[i]);
            }
        });
    }
};

// One block: each thread has a part of the curve, first to add up, then to write.
struct DrawCurve {
    static constexpr int kThreads = kCurveRows * kCurveRow;
    struct Shared {
        double squares[kThreads + 1], square_rows[kCurveRows];
        std::int64_t counts[kThreads], count_rows[kCurveRows];
        double all;
    };
    const std::uint32_t* bins;
    const Key* low;
    std::int64_t* counts;
    double* shares;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t first_of_tail = *low >> kCurveShift;
        const auto each_of = [&](std::int64_t part, auto body) {
            for (std::int64_t b = part * kCurvePart; b < (part + 1) * kCurvePart; ++b) {
                const std::int64_t bin = kCurveBins - 1 - b;
                const std::int64_t count = static_cast<std::int64_t>(bins[bin]) * (bin < first_of_tail ? 4 : 1);
                body(b, count, count == 0 ? 0.0 : curve_square(bin) * static_cast<double>(count));
            }
        };
        block.each([&](int t) {
            double squares = 0.0;
            std::int64_t found = 0;
            each_of(t, [&](std::int64_t, std::int64_t count, double square) {
                squares += square;
                found += count;
            });
            shared.squares[t] = squares;
            shared.counts[t] = found;
        });
        block.sync();
        block.each([&](int t) {
            if (t >= kCurveRows) return;
            shared.square_rows[t] = sums_before(shared.squares + t * kCurveRow, kCurveRow);
            shared.count_rows[t] = sums_before(shared.counts + t * kCurveRow, kCurveRow);
        });
        block.sync();
        block.each([&](int t) {
            if (t != 0) return;
            shared.squares[kThreads] = shared.all = sums_before(shared.square_rows, kCurveRows);
            sums_before(shared.count_rows, kCurveRows);
            counts[0] = 0;
            shares[0] = 0.0;
        });
        block.sync();
        block.each([&](int t) { shared.squares[t] += shared.square_rows[t / kCurveRow]; });
        block.sync();
        const double all = shared.all;
        block.each([&](int t) {
            double sum = shared.squares[t];
            std::int64_t found = shared.counts[t] + shared.count_rows[t / kCurveRow];
            each_of(t, [&](std::int64_t b, std::int64_t count, double square) {
                found += count;
                sum += square;
                counts[b + 1] = all == 0.0 ? 1 : found;
                shares[b + 1] = all == 0.0 ? 1.0 : curve_share(sum, shared.squares[t + 1], all);
            });
        });
    }
};

}  // namespace hvd_compress::cuda
