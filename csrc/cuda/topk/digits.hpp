// Counts by digits of keys, in the shared memory of a block, and which digit the k-th largest has.
#pragma once

#include "state.hpp"

namespace hvd_compress::cuda {

// Bins as a block counts them, and what its last one needs to walk them.
struct DigitShared {
    std::uint32_t bins[kDigitBins];
    WalkShared walk;
    std::uint32_t is_last;
};

template <class B>
HVD_COMPRESS_TILE void clear_bins(const B& block, DigitShared& shared) {
    block.each([&](int t) {
        for (int bin = t; bin < kDigitBins; bin += kTopkThreads) shared.bins[bin] = 0;
    });
    block.sync();
}

template <class B>
HVD_COMPRESS_TILE void add_bins(const B& block, const DigitShared& shared, std::uint32_t* bins) {
    block.sync();
    block.each([&](int t) {
        for (int bin = t; bin < kDigitBins; bin += kTopkThreads) {
            if (shared.bins[bin] != 0) atomic_add(&bins[bin], shared.bins[bin]);
        }
    });
}

// From the counts of the range by the first digit: which one that of the k-th largest is.
template <class B>
HVD_COMPRESS_TILE void choose_first_digit(const B& block, WalkShared& shared, State* state, const std::uint32_t* bins,
                                          std::int64_t wanted) {
    const Walked at = walk<kTopkThreads>(block, shared, bins, kDigitBins, wanted);
    block.each([&](int t) {
        if (t != 0) return;
        state->base = state->low + (static_cast<Key>(at.bin) << kDigitBits);
        state->wanted = wanted - at.above;
    });
}

}  // namespace hvd_compress::cuda
