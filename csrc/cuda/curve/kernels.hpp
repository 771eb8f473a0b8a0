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

constexpr int kCurveRounds = 8;
using CurveTile = Tile<256, kCurveRounds>;

template <class T>
struct CountMagnitudes {
    static constexpr int kThreads = 256, kResidentBlocks = 4;
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
        const std::int64_t tiles = (source.n + CurveTile::kNumel - 1) / CurveTile::kNumel;
        block.each([&](int t) {
            for (std::int64_t index = block.index; index < tiles; index += block.count) {
                const CurveTile tile{index};
                float v[kCurveRounds][kWide];
                source.read(tile, t, v);
                HVD_COMPRESS_UNROLL
                for (int round = 0; round < kCurveRounds; ++round) {
                    const std::int64_t i = tile.at(round, t);
                    std::uint32_t magnitudes[kWide], largest = 0;
                    HVD_COMPRESS_UNROLL
                    for (int j = 0; j < kWide; ++j) {
                        magnitudes[j] = to_bits(v[round][j]) & 0x7fffffffu;
                        largest = larger_of(largest, magnitudes[j]);
                    }
                    // Its neighbours are chosen with it, being four from a multiple of four on.
                    const bool chosen = is_chosen(i);
                    if (i >= source.n || (largest >> kCurveShift < first_of_tail && !chosen)) continue;
                    HVD_COMPRESS_UNROLL
                    for (int j = 0; j < kWide; ++j) {
                        const Key bin = magnitudes[j] >> kCurveShift;
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

// A row of the curve: its parts, bin by bin.
constexpr int kRowParts = static_cast<int>(kCurveRow), kPartBins = static_cast<int>(kCurvePart);
constexpr int kRowBins = kRowParts * kPartBins;
constexpr int kDrawThreads = 256;

struct RowTotal {
    double squares;
    std::int64_t count;
};

struct RowShared {
    // One more than there are bins: threads that each go through a part meet no other's bank.
    double squares[kRowParts][kPartBins + 1];
    std::int64_t counts[kRowParts][kPartBins + 1];
    double part_squares[kRowParts + 1];
    std::int64_t part_counts[kRowParts];
};

// What the elements of each bin add to ||x||^2, and the sums of each part, in the order of the header.
template <class B>
HVD_COMPRESS_TILE void sum_parts(const B& block, RowShared& shared, const std::uint32_t* bins, const Key* low) {
    const std::int64_t first_of_tail = *low >> kCurveShift;
    block.each([&](int t) {
        for (int b = t; b < kRowBins; b += kDrawThreads) {
            const std::int64_t bin = kCurveBins - 1 - (block.index * kRowBins + b);
            const std::int64_t count = static_cast<std::int64_t>(bins[bin]) * (bin < first_of_tail ? 4 : 1);
            shared.counts[b / kPartBins][b % kPartBins] = count;
            shared.squares[b / kPartBins][b % kPartBins] =
                count == 0 ? 0.0 : curve_square(bin) * static_cast<double>(count);
        }
    });
    block.sync();
    block.each([&](int t) {
        if (t >= kRowParts) return;
        double squares = 0.0;
        std::int64_t count = 0;
        for (int b = 0; b < kPartBins; ++b) {
            squares += shared.squares[t][b];
            count += shared.counts[t][b];
        }
        shared.part_squares[t] = squares;
        shared.part_counts[t] = count;
    });
    block.sync();
}

// A block for each row: its total.
struct SumRow {
    static constexpr int kThreads = kDrawThreads;
    using Shared = RowShared;
    const std::uint32_t* bins;
    const Key* low;
    RowTotal* totals;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        sum_parts(block, shared, bins, low);
        block.each([&](int t) {
            if (t != 0) return;
            totals[block.index].squares = sums_before(shared.part_squares, kRowParts);
            totals[block.index].count = sums_before(shared.part_counts, kRowParts);
        });
    }
};

// A block for each row writes its part of the curve.
struct DrawRow {
    static constexpr int kThreads = kDrawThreads;
    struct Shared : RowShared {
        RowTotal before[kCurveRows];  // the row
        double all;
    };
    const std::uint32_t* bins;
    const Key* low;
    const RowTotal* totals;
    std::int64_t* counts;
    double* shares;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        sum_parts(block, shared, bins, low);
        block.each([&](int t) {
            if (t == 0) sum_rows(shared, block.index);
        });
        block.sync();
        block.each([&](int t) {
            if (t >= kRowParts) return;
            double squares = shared.part_squares[t];
            std::int64_t count = shared.part_counts[t];
            for (int b = 0; b < kPartBins; ++b) {
                squares += shared.squares[t][b];
                count += shared.counts[t][b];
                shared.squares[t][b] = squares;
                shared.counts[t][b] = count;
            }
        });
        block.sync();
        const double all = shared.all;
        block.each([&](int t) {
            for (int b = t; b < kRowBins; b += kDrawThreads) {
                const int part = b / kPartBins;
                const std::int64_t at = block.index * kRowBins + b + 1;
                counts[at] = all == 0.0 ? 1 : shared.counts[part][b % kPartBins];
                shares[at] = all == 0.0
                                 ? 1.0
                                 : curve_share(shared.squares[part][b % kPartBins], shared.part_squares[part + 1], all);
            }
            if (block.index != 0 || t != 0) return;
            counts[0] = 0;
            shares[0] = 0.0;
        });
    }

  private:
    // Sums of parts and rows become what lies before each part; behind the last one, before what follows.
    HVD_COMPRESS_TILE void sum_rows(Shared& shared, std::int64_t row) const {
        double squares = 0.0;
        std::int64_t count = 0;
        for (std::int64_t r = 0; r < kCurveRows; ++r) {
            shared.before[r] = {squares, count};
            squares += totals[r].squares;
            count += totals[r].count;
        }
        shared.all = squares;
        sums_before(shared.part_squares, kRowParts);
        sums_before(shared.part_counts, kRowParts);
        for (int part = 0; part < kRowParts; ++part) {
            shared.part_squares[part] += shared.before[row].squares;
            shared.part_counts[part] += shared.before[row].count;
        }
        shared.part_squares[kRowParts] = row + 1 < kCurveRows ? shared.before[row + 1].squares : squares;
    }
};

}  // namespace hvd_compress::cuda
