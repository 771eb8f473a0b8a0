// Ascending indices in few bits, by the code of Elias (1974, "Efficient Storage and Retrieval by Content and Address of
// Static Files") and Fano (1971).
//
// Of `count` indices of 0..n-1, ascending without repetition, the l = floor(log2(n / count)) low bits are stored as
// they are, and the differences of what lies above them in unary: so many zeros, then a one. So bit (index[i] >> l) + i
// of the high words is 1 for each i, and the low bits of index i are bits i * l to i * l + l - 1 of the low words. Bit
// b of such an array is bit b % 32 of word b / 32. The high words come first, the low words follow; what is left of the
// last word of each is 0. Without indices there are no words.
//
// The length follows from n and count alone: l + 2 to l + 3 bits an index, and less than 8 bytes. With count / n =
// 1/100 that is 8.6 bits.
//
// Codes may come from another rank. Both twins write no more than `count` indices, whatever the words hold.
#pragma once

#include "hvd_compress/numeric.hpp"
#include "hvd_compress/scatter.hpp"

namespace hvd_compress {

struct EliasFano {
    std::int64_t low_bits, high_words, low_words;
};

HVD_COMPRESS_HD constexpr EliasFano elias_fano(std::int64_t n, std::int64_t count) noexcept {
    if (count <= 0) return {0, 0, 0};
    std::int64_t low_bits = 0;
    while (n / count >> (low_bits + 1) != 0) ++low_bits;
    const std::int64_t high_bits = count + ((n > 0 ? n - 1 : 0) >> low_bits);
    return {low_bits, (high_bits + 31) / 32, (count * low_bits + 31) / 32};
}

// words = the code of the indices. Bad is, on the CPU, *first_bad: -1, or the position of the first index that does not
// lie within 0..n-1 or above the one before, and nothing is written then. On CUDA bad indices are left out.
template <class Bad>
using EliasFanoEncode = Status(const std::int32_t* indices, std::int64_t count, std::int64_t n, std::uint32_t* words,
                               Bad bad, Stream stream) noexcept;

using EliasFanoWorkspaceBytes = std::size_t(std::int64_t n, std::int64_t count) noexcept;

// indices[0..count) = what the words are the code of. Bad, on the CPU, is *first_bad: -1, or the position of an index
// that does not lie within 0..n-1 or above the one before, or that is missing, or one too many (then `count`); what the
// indices are then means nothing. On CUDA the first such position goes to the Fault, and bad indices are -1.
template <class Bad>
using EliasFanoDecode = Status(const std::uint32_t* words, std::int64_t count, std::int64_t n, std::int32_t* indices,
                               Workspace workspace, Bad bad, Stream stream) noexcept;

namespace cpu {
EliasFanoWorkspaceBytes elias_fano_workspace_bytes;
EliasFanoEncode<std::int64_t*> elias_fano_encode;
EliasFanoDecode<std::int64_t*> elias_fano_decode;
}  // namespace cpu

namespace cuda {
EliasFanoWorkspaceBytes elias_fano_workspace_bytes;
EliasFanoEncode<Fault> elias_fano_encode;
EliasFanoDecode<Fault> elias_fano_decode;
}  // namespace cuda

}  // namespace hvd_compress
