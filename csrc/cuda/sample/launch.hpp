#pragma once

#include <cmath>

#include "../launch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {

// Guesses the key above which at least the k largest lie. `bins` (kSampleBins) are zero.
template <class Source>
void launch_sample(const Source& source, std::int64_t n, std::int64_t k, std::uint32_t* bins, Key* low, Stream stream) {
    const std::int64_t blocks = sample_blocks(n), quarters = blocks * (kSampledBlock / kWide);
    launch(Sample<Source>{source, blocks, n / blocks, bins}, divided_up(quarters, Sample<Source>::kThreads), stream);
    const double expected =
        static_cast<double>(blocks * kSampledBlock) * static_cast<double>(k) / static_cast<double>(n);
    const double upper = std::ceil(expected + sample_margin(expected));
    launch(ChooseLow{low, bins, static_cast<std::int64_t>(upper)}, 1, stream);
}

}  // namespace hvd_compress::cuda
