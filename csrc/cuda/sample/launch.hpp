#pragma once

#include <cmath>

#include "../launch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {

// Counts a sample of n elements by their keys. `bins` (kSampleBins) are zero.
template <class Source>
void launch_sample(const Source& source, std::int64_t n, std::uint32_t* bins, Stream stream) {
    const std::int64_t blocks = sample_blocks(n), quarters = blocks * (kSampledBlock / kWide);
    launch(Sample<Source>{source, blocks, n / blocks, bins}, divided_up(quarters, Sample<Source>::kThreads), stream);
}

// The ranks in the sample between which the k-th largest of n elements probably lies: at least k lie above the key of
// the lower one, fewer above that of the upper one.
struct SampledRanks {
    std::int64_t lower, upper;

    SampledRanks(std::int64_t n, std::int64_t k) {
        const auto sampled = static_cast<double>(sample_blocks(n) * kSampledBlock);
        const double expected = sampled * static_cast<double>(k) / static_cast<double>(n);
        upper = static_cast<std::int64_t>(std::ceil(expected + sample_margin(expected)));
        lower = static_cast<std::int64_t>(std::floor(expected - sample_margin(expected)));
    }
};

}  // namespace hvd_compress::cuda
