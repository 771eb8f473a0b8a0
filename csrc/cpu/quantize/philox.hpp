// Philox4x32-7 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): random words from a counter.
// Seven rounds are the fewest that pass all of BigCrush there (Table 2); ten are usual, where time does not matter.
#pragma once

#include "../isa/isa.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

// Replaces sixteen counters, a vector for each of their four words, by as many random ones.
//
// Even and odd lanes go apart, each in the even words of vectors: a product of 64 bits then is the next round's word
// as it is. What lies in odd words means nothing. Inlined, so that vectors stay in registers.
[[gnu::always_inline]] inline void philox(Isa::Words counter[4], std::uint32_t key0, std::uint32_t key1) {
    Isa::Words half[2][4];
    for (int word = 0; word < 4; ++word) {
        half[0][word] = counter[word];
        half[1][word] = Isa::odd(counter[word]);
    }
    for (int round = 0; round < 7; ++round) {
        for (auto& own : half) {
            const Isa::Words first = Isa::products(own[0], 0xd2511f53u), second = Isa::products(own[2], 0xcd9e8d57u);
            own[0] = Isa::exclusive_or(Isa::exclusive_or(Isa::odd(second), own[1]), Isa::all_words(key0));
            own[1] = second;
            own[2] = Isa::exclusive_or(Isa::exclusive_or(Isa::odd(first), own[3]), Isa::all_words(key1));
            own[3] = first;
        }
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    for (int word = 0; word < 4; ++word) counter[word] = Isa::interleaved(half[0][word], half[1][word]);
}

}  // namespace
}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
