// MSTopk: mean and maximum, then a few rounds of bisection at a time. Elements are counted for all thresholds that
// these rounds may come to in one pass: seven rounds need 127 of them, and 25 rounds four passes.
#pragma once

#include "../sign/kernels.hpp"
#include "../topk/state.hpp"
#include "hvd_compress/mstopk.hpp"

namespace hvd_compress::cuda {

constexpr int kRoundsAtOnce = 7;
constexpr int kThresholds = 1 << kRoundsAtOnce;  // number 0 is below all; the others are tried
constexpr int kKeyRounds = 31;                   // that find the k-th largest key itself

// What is known between passes. With all elements finite, rounds divide [mean, top]; else they divide the keys, and
// find the k largest exactly.
struct Bisection {
    double mean, top;
    double low, high;  // parts of [mean, top], or of the keys
    bool finite;
    std::uint32_t counts[kThresholds];  // elements that reach one threshold, but not the next one

    HVD_COMPRESS_TILE int left(int rounds, int done) const { return (finite ? rounds : kKeyRounds) - done; }
    HVD_COMPRESS_TILE Key threshold(int number) const {
        const double at = low + (high - low) * number / kThresholds;
        return finite ? key_reaching(mean + at * (top - mean)) : static_cast<Key>(at * 0x1p31);
    }
};

// The largest of the keys is then in keys[0], for thread 0. Their number is a power of two.
template <class B>
HVD_COMPRESS_TILE void largest_key(const B& block, Key* keys, int count) {
    for (int width = count / 2; width > 0; width /= 2) {
        block.sync();
        block.each([&](int t) {
            if (t < width && keys[t + width] > keys[t]) keys[t] = keys[t + width];
        });
    }
}

// sums[block], and the largest key of a block; what is corrected is written.
template <class Source>
struct SumMagnitudes {
    static constexpr int kThreads = kSignThreads;
    struct Shared {
        float magnitudes[kSumBlock];
        double lanes[kSumLanes];
        Key tops[kSumLanes];
    };
    Source source;
    double* sums;
    Key* tops;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            float v[kSignRounds][kWide];
            source.read(SignTile{block.index}, t, v);
            source.write(SignTile{block.index}, t, v);
            for_each_value(v, [&](float x, int round, int j) {
                shared.magnitudes[SignTile::place(round, t) + j] = from_bits(to_bits(x) & 0x7fffffffu);
            });
        });
        block.sync();
        block.each([&](int t) {
            if (t >= kSumLanes) return;
            double sum = 0.0;
            Key top = 0;
            for (int i = t; i < kSumBlock; i += kSumLanes) {
                sum += static_cast<double>(shared.magnitudes[i]);
                const Key key = Traits<float>::key(shared.magnitudes[i]);
                top = key > top ? key : top;
            }
            shared.lanes[t] = sum;
            shared.tops[t] = top;
        });
        add_lanes(block, shared.lanes, kSumLanes);
        largest_key(block, shared.tops, kSumLanes);
        block.each([&](int t) {
            if (t != 0) return;
            sums[block.index] = shared.lanes[0];
            tops[block.index] = shared.tops[0];
        });
    }
};

struct BeginBisection {
    static constexpr int kThreads = kBlockLanes;
    struct Shared {
        double lanes[kBlockLanes];
        Key tops[kBlockLanes];
    };
    const double* sums;
    const Key* tops;
    std::int64_t n, k;
    Bisection* bisection;
    State* state;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            double sum = 0.0;
            Key top = 0;
            for (std::int64_t i = t; i * kSumBlock < n; i += kBlockLanes) {
                sum += sums[i];
                top = tops[i] > top ? tops[i] : top;
            }
            shared.lanes[t] = sum;
            shared.tops[t] = top;
            if (t < kThresholds) bisection->counts[t] = 0;
        });
        add_lanes(block, shared.lanes, kBlockLanes);
        largest_key(block, shared.tops, kBlockLanes);
        block.each([&](int t) {
            if (t != 0) return;
            const auto top = static_cast<double>(from_bits(shared.tops[0]));
            const double mean = shared.lanes[0] / static_cast<double>(n);
            bisection->top = top;
            bisection->mean = mean < top ? mean : top;  // rounded, it may be above
            bisection->low = 0.0;
            bisection->high = 1.0;
            bisection->finite = shared.tops[0] < Traits<float>::kInfinityKey;
            *state = first_state(k);
            state->stage = Stage::kAll;
        });
    }
};

constexpr int kThresholdRounds = 4;
using ThresholdTile = Tile<256, kThresholdRounds>;

template <class Source>
struct CountThresholds {
    static constexpr int kThreads = 256;
    struct Shared {
        Key thresholds[kThresholds];
        std::uint32_t counts[kThresholds];
    };
    Source source;
    int rounds, done;
    Bisection* bisection;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (bisection->left(rounds, done) <= 0) return;
        block.each([&](int t) {
            if (t >= kThresholds) return;
            shared.thresholds[t] = t == 0 ? 0 : bisection->threshold(t);
            shared.counts[t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            const std::int64_t tiles = (source.n + ThresholdTile::kNumel - 1) / ThresholdTile::kNumel;
            for (std::int64_t index = block.index; index < tiles; index += block.count) {
                const ThresholdTile tile{index};
                float v[kThresholdRounds][kWide];
                source.read_left(tile, t, v);
                for_each_value(v, [&](float x, int round, int j) {
                    const Key key = Traits<float>::key(x);
                    if (tile.at(round, t) + j >= source.n || key < shared.thresholds[1]) return;
                    int number = 0;
                    for (int step = kThresholds / 2; step > 0; step /= 2) {
                        number += key >= shared.thresholds[number + step] ? step : 0;
                    }
                    atomic_add(&shared.counts[number], 1u);
                });
            }
        });
        block.sync();
        block.each([&](int t) {
            if (t < kThresholds && shared.counts[t] != 0) atomic_add(&bisection->counts[t], shared.counts[t]);
        });
    }
};

// The next rounds of bisection, from their counts.
struct Bisect {
    static constexpr int kThreads = kThresholds;
    struct Shared {
        std::uint32_t scratch[32];
        std::int64_t reached[kThresholds];  // elements that reach a threshold
    };
    std::int64_t k;
    int rounds, done;
    Bisection* bisection;
    State* state;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<std::uint32_t> own, above;
        block.each([&](int t) { above[t] = own[t] = bisection->counts[kThresholds - 1 - t]; });
        block.exclusive_sum(above, shared.scratch);
        block.each([&](int t) {
            shared.reached[kThresholds - 1 - t] = std::int64_t{above[t]} + own[t];
            bisection->counts[kThresholds - 1 - t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            if (t != 0) return;
            const int left = bisection->left(rounds, done);
            int low = 0, high = kThresholds;
            for (int round = 0; round < left && round < kRoundsAtOnce; ++round) {
                const int middle = (low + high) / 2;
                const std::int64_t reached = shared.reached[middle];
                if (reached <= k) {
                    high = middle;
                    state->first = bisection->threshold(middle);
                    state->wanted = k - reached;
                } else {
                    low = middle;
                    state->last = bisection->threshold(middle);
                }
            }
            const double start = bisection->low, size = bisection->high - start;
            bisection->low = start + size * low / kThresholds;
            bisection->high = start + size * high / kThresholds;
        });
    }
};

}  // namespace hvd_compress::cuda
