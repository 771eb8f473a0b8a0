// The codes of a block quantisation in digits (blocks.hpp, most = 3 or 2) in as many bits as their distribution needs.
//
// The number that four elements share is one symbol, and has a Huffman code of at most kCodedLongest bits: of four
// whole numbers at once it is within 2 % of their entropy. Tables are static: table t expects digits by kCodedWeights,
// and the encoder takes the one by which its codes are shortest. Code words are canonical: of ascending length, those
// of one length by ascending number.
//
// Coded, n elements are
//   1 byte: the table, or kCodedRaw: then the codes follow as blocks.hpp has them;
//   for each chunk of kCodedChunk groups, the last of which may have fewer, 16 lengths of 16 bits: bytes of its
//   streams; the streams, one after the other. Stream j of a chunk has number j of each of its groups, in order; the
//   first bit of a code word is the lowest of those that are left of a byte, and what is left of the last byte is 0.
// So a chunk can be decoded by itself, and each of its streams, too.
//
// What is coded may come from another rank: nothing is read or written outside of it, whatever it holds.
#pragma once

#include "hvd_compress/blocks.hpp"

namespace hvd_compress {

constexpr int kCodedChunk = 256, kCodedStreams = 16, kCodedTables = 4, kCodedLongest = 13;
constexpr std::uint8_t kCodedRaw = 255;

// Of each table how often q = 0, and each of 1 to most and of -1 to -most, is expected among 4096.
constexpr std::uint16_t kCodedWeights[2][kCodedTables][4] = {
    {{1969, 936, 127}, {2777, 575, 84}, {3061, 452, 65}, {3626, 217, 18}},                    // most = 2
    {{1364, 949, 334, 83}, {2192, 723, 169, 61}, {2477, 647, 112, 50}, {3186, 404, 38, 13}},  // most = 3
};

constexpr std::int64_t coded_chunks(std::int64_t n) noexcept {
    return (block_code_bytes(n, 1) / block_group_bytes(1) + kCodedChunk - 1) / kCodedChunk;
}
// At most.
constexpr std::int64_t coded_bytes(std::int64_t n, int most) noexcept { return 1 + block_code_bytes(n, most); }

namespace cpu {

// coded[0..*bytes) = the codes of n elements, in no more than coded_bytes(n, most).
Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, std::uint8_t* coded,
                    std::int64_t* bytes) noexcept;

// codes = what is coded in so many bytes. kBadPayload where these are no code of n elements; what codes are then means
// nothing.
Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most,
                    std::uint8_t* codes) noexcept;

}  // namespace cpu

}  // namespace hvd_compress
