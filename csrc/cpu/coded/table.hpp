// The Huffman codes of a table.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hvd_compress/coded.hpp"

namespace hvd_compress::cpu {

struct CodeTable {
    // By number: its code word, the first bit the lowest, above its length of 4 bits.
    std::vector<std::uint32_t> words;
    // By the next kCodedLongest bits: the number, above the length of its code word; 0 where there is no such word.
    std::array<std::uint16_t, 1 << kCodedLongest> numbers;

    int length(std::uint32_t number) const { return words[number] & 15; }
};

// Made when it is first asked for.
const CodeTable& code_table(int most, int table);

}  // namespace hvd_compress::cpu
