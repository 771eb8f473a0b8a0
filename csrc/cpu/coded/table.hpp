// The Huffman codes of a table.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hvd_compress/coded.hpp"

namespace hvd_compress::cpu {

struct CodeTable {
    // By symbol: its code word, the first bit the lowest, above its length of 4 bits; 0 where it has none.
    std::vector<std::uint32_t> words;
    // By the next coded_longest() bits: the symbol, above the length of its code word. There is one for all bits.
    std::vector<std::uint16_t> numbers;
};

// Those of one `most`.
struct CodeTables {
    CodeTable tables[kCodedTables];
    // By symbol: how many bits it takes by each table.
    std::vector<std::array<std::uint8_t, kCodedTables>> lengths;
};

// Made when it is first asked for.
const CodeTables& code_tables(int most);

}  // namespace hvd_compress::cpu
