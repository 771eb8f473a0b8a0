// The codes of a block quantisation (blocks.hpp, most = 7, 3, 2 or 1) in as many bits as their distribution needs.
//
// What elements share, a number in digits or a byte, is one symbol. Symbols are rows of 16: a group is one, with most =
// 7 two. A symbol has a Huffman code of at most coded_longest() bits; of two whole numbers at once or of four it is
// within 2 % of their entropy in gradients, and within 7 % where tails are heavier. Tables are static: each expects
// whole numbers as often as table.cpp says, each by itself. Code words are canonical: of ascending length, those of one
// length by ascending symbol.
//
// Rows are cut into chunks of kCodedRows; the last one may have fewer. Coded, they are
//   1 byte a chunk: the table by which a sample of it is shortest, or kCodedRaw;
//   for each chunk that is not raw 16 lengths of 16 bits: bytes of its streams;
//   the chunks: their streams, one after the other, or raw, as blocks.hpp has them, which is never more.
// Stream j of a chunk has symbol j of each row. The first bit of a code word is the lowest of those that are left of a
// byte, and what is left of the last byte is 0. So each chunk can be decoded by itself, and each of its streams, too.
//
// What is coded may come from another rank: nothing is read or written outside of it, whatever it holds.
#pragma once

#include <type_traits>

#include "hvd_compress/blocks.hpp"

namespace hvd_compress {

constexpr int kCodedRows = 512, kCodedStreams = 16, kCodedTables = 16;
constexpr int kCodedStep = 32;                   // every such row is of the sample
constexpr int kLengthBytes = 2 * kCodedStreams;  // of a chunk that has streams
constexpr std::uint8_t kCodedRaw = 255;

constexpr bool is_codable(int most) noexcept { return most == 7 || most == 3 || most == 2 || most == 1; }

// The bits of the longest code word: more save less than what larger tables cost in time.
HVD_COMPRESS_HD constexpr int coded_longest(int most) noexcept { return most == 3 ? 14 : most == 2 ? 13 : 12; }
// How many symbols there could be.
HVD_COMPRESS_HD constexpr int coded_symbols(int most) noexcept {
    return has_digits(most) ? 256 << bits_above_byte(most) : 256;
}
// Of a group; and groups of a chunk.
HVD_COMPRESS_HD constexpr int coded_rows(int most) noexcept { return most == 7 ? 2 : 1; }
HVD_COMPRESS_HD constexpr int chunk_groups(int most) noexcept { return kCodedRows / coded_rows(most); }
constexpr std::int64_t coded_chunks(std::int64_t n, int most) noexcept {
    const std::int64_t whole = chunk_groups(most) * kBlockGroup;
    return n / whole + (n % whole != 0);
}
// At most.
constexpr std::int64_t coded_bytes(std::int64_t n, int most) noexcept {
    return coded_chunks(n, most) + block_code_bytes(n, most);
}

// Calls body with a codable `most` as a constant.
template <class Body>
auto with_codable(int most, const Body& body) {
    switch (most) {
        case 7:
            return body(std::integral_constant<int, 7>());
        case 3:
            return body(std::integral_constant<int, 3>());
        case 2:
            return body(std::integral_constant<int, 2>());
        default:
            return body(std::integral_constant<int, 1>());
    }
}

namespace cpu {

// coded[0..*bytes) = the codes of n elements, in no more than coded_bytes(n, most).
Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, std::uint8_t* coded,
                    std::int64_t* bytes) noexcept;

// codes = what is coded in `bytes` bytes. kBadPayload where these are no code of n elements; what codes are then means
// nothing.
Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most,
                    std::uint8_t* codes) noexcept;

}  // namespace cpu

namespace cuda {

// Tables in the device's memory, one after the other, as cpu/coded/table.hpp has them: `words` and `numbers` by table,
// `lengths` by symbol.
struct CodedTables {
    const std::uint32_t* words;
    const std::uint8_t* lengths;
    const std::uint16_t* numbers;
};

std::size_t coded_workspace_bytes(std::int64_t n, int most) noexcept;

Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, CodedTables by, std::uint8_t* coded,
                    std::int64_t* bytes, Workspace workspace, Stream stream) noexcept;

// bad[0..1] = 0 where it is a code of n elements; elsewhere one of them is 1.
Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most, CodedTables by,
                    std::uint8_t* codes, std::int32_t* bad, Workspace workspace, Stream stream) noexcept;

}  // namespace cuda

}  // namespace hvd_compress
