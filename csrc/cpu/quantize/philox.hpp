// Philox4x32-7 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): random words from a counter.
// Seven rounds are the fewest that pass all of BigCrush there (Table 2); ten are usual, where time does not matter.
#pragma once

#include "../isa/isa.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {

// Replaces sixteen counters, a vector for each of their four words, by as many random ones.
inline void philox(Isa::Words counter[4], std::uint32_t key0, std::uint32_t key1) {
    for (int round = 0; round < 7; ++round) {
        Isa::Words high0, low0, high1, low1;
        Isa::multiply(counter[0], 0xd2511f53u, &high0, &low0);
        Isa::multiply(counter[2], 0xcd9e8d57u, &high1, &low1);
        counter[0] = Isa::exclusive_or(Isa::exclusive_or(high1, counter[1]), Isa::all_words(key0));
        counter[1] = low1;
        counter[2] = Isa::exclusive_or(Isa::exclusive_or(high0, counter[3]), Isa::all_words(key1));
        counter[3] = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
