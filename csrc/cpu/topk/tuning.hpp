#pragma once

namespace hvd_compress::cpu {

// Keys are refined by this many bits a pass. 2048 counters fit the first-level cache beside the data.
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;

}  // namespace hvd_compress::cpu
