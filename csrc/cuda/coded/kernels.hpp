// Huffman codes of block codes: a block a chunk. Encoders read a chunk twice, once to measure and once to write, as
// where it begins is up to all before it. A thread has a part of a stream; decoding, all of one.
#pragma once

#include "../places.hpp"
#include "hvd_compress/coded.hpp"

namespace hvd_compress::cuda {

constexpr int kCodedParts = 16;  // of a stream, each as many rows as a sample skips
constexpr int kCodedThreads = kCodedParts * kCodedStreams, kDecodedThreads = 128;
static_assert(kCodedParts * kCodedStep == kCodedRows && kCodedTables == kCodedStreams);

// A chunk's codes.
struct ChunkOfCodes {
    std::int64_t first;  // byte
    int rows, bytes;
};

template <int most>
HVD_COMPRESS_TILE ChunkOfCodes chunk_of_codes(std::int64_t chunk, std::int64_t n) {
    constexpr int kWhole = chunk_groups(most);
    const std::int64_t groups = n / kBlockGroup + (n % kBlockGroup != 0), left = groups - chunk * kWhole;
    const int own = left < kWhole ? static_cast<int>(left) : kWhole;
    return {chunk * kWhole * block_group_bytes(most), own * coded_rows(most), own * block_group_bytes(most)};
}

// Symbol j of a row of codes.
template <int most>
HVD_COMPRESS_TILE int symbol_at(const std::uint8_t* codes, int row, int j) {
    if constexpr (has_digits(most)) {
        constexpr int bits = bits_above_byte(most), mask = (1 << bits) - 1;
        const std::uint8_t* const group = codes + row * block_group_bytes(most);
        return group[j] | (group[kCodedStreams + j * bits / 8] >> j * bits % 8 & mask) << 8;
    } else {
        return codes[row * kCodedStreams + j];
    }
}

// Byte i of codes, from their symbols.
template <int most>
HVD_COMPRESS_TILE std::uint8_t byte_of(const std::uint16_t* symbols, int i) {
    if constexpr (has_digits(most)) {
        constexpr int bits = bits_above_byte(most), together = 8 / bits;
        const int row = i / block_group_bytes(most), at = i % block_group_bytes(most);
        const std::uint16_t* const own = symbols + row * kCodedStreams;
        if (at < kCodedStreams) return static_cast<std::uint8_t>(own[at]);
        int above = 0;
        for (int j = 0; j < together; ++j) above |= own[(at - kCodedStreams) * together + j] >> 8 << j * bits;
        return static_cast<std::uint8_t>(above);
    } else {
        return static_cast<std::uint8_t>(symbols[i]);
    }
}

// How many bytes stream j has, as the lengths before all chunks say.
HVD_COMPRESS_TILE int length_of(const std::uint8_t* lengths, int j) { return lengths[2 * j] | lengths[2 * j + 1] << 8; }

// The bits that a part of a stream takes, or more than any has where a symbol has no code word.
template <int most>
HVD_COMPRESS_TILE std::uint32_t part_bits(const std::uint8_t* codes, int rows, int part, int j,
                                          const std::uint32_t* words) {
    constexpr std::uint32_t kNone = std::uint32_t{1} << 20;
    std::uint32_t bits = 0;
    for (int row = part * kCodedStep; row < (part + 1) * kCodedStep && row < rows; ++row) {
        const std::uint32_t word = words[symbol_at<most>(codes, row, j)];
        bits += word == 0 ? kNone : word & 15;
    }
    return bits;
}

using PartBits = std::uint32_t[kCodedParts][kCodedStreams];

// Writes which table a chunk has, the bytes of its streams, whether it has them, and the bytes of the chunk.
template <int most>
struct MeasureChunks {
    static constexpr int kThreads = kCodedThreads;
    struct Shared {
        PartBits bits;  // of the sample by table, of streams
        std::uint32_t sums[kCodedStreams];
    };
    const std::uint8_t* codes;
    std::int64_t n;
    CodedTables by;
    std::uint8_t* tables;
    std::uint16_t* lengths;
    Count *streamed, *sizes;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const ChunkOfCodes own = chunk_of_codes<most>(block.index, n);
        const std::uint8_t* const from = codes + own.first;
        block.each([&](int t) {
            const int part = t / kCodedStreams, table = t % kCodedStreams, row = part * kCodedStep;
            std::uint32_t bits = 0;
            for (int j = 0; row < own.rows && j < kCodedStreams; ++j) {
                bits += by.lengths[symbol_at<most>(from, row, j) * kCodedTables + table];
            }
            shared.bits[part][table] = bits;
        });
        add_parts(block, shared);
        int table = 0;
        for (int other = 1; other < kCodedTables; ++other) {
            if (shared.sums[other] < shared.sums[table]) table = other;
        }
        const std::uint32_t* const words = by.words + table * coded_symbols(most);
        block.each([&](int t) {
            const int part = t / kCodedStreams, j = t % kCodedStreams;
            shared.bits[part][j] = part_bits<most>(from, own.rows, part, j, words);
        });
        add_parts(block, shared);
        std::uint32_t bytes = kLengthBytes;
        for (const std::uint32_t bits : shared.sums) bytes += (bits + 7) / 8;
        const bool is_raw = bytes >= static_cast<std::uint32_t>(own.bytes);
        block.each([&](int t) {
            if (t < kCodedStreams) {
                lengths[block.index * kCodedStreams + t] = static_cast<std::uint16_t>((shared.sums[t] + 7) / 8);
            }
            if (t != 0) return;
            tables[block.index] = is_raw ? kCodedRaw : static_cast<std::uint8_t>(table);
            streamed[block.index] = is_raw ? 0 : 1;
            sizes[block.index] = is_raw ? own.bytes : bytes - kLengthBytes;
        });
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void add_parts(const B& block, Shared& shared) const {
        block.sync();
        block.each([&](int t) {
            if (t >= kCodedStreams) return;
            std::uint32_t sum = 0;
            for (int part = 0; part < kCodedParts; ++part) sum += shared.bits[part][t];
            shared.sums[t] = sum;
        });
        block.sync();
    }
};

// Replaces, by chunk, whether it has streams by how many before it have, and its bytes by those of all before it.
// streamed[chunks] is how many have.
struct PlaceChunks {
    static constexpr int kThreads = kPlaceThreads;
    using Shared = PlaceShared;
    Count *streamed, *sizes;
    std::int64_t chunks;
    std::int64_t* bytes;  // of all

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Count with = place(block, shared, streamed, chunks);
        block.sync();
        const Count all = place(block, shared, sizes, chunks);
        block.each([&](int t) {
            if (t != 0) return;
            streamed[chunks] = with;
            *bytes = chunks + static_cast<std::int64_t>(with * kLengthBytes + all);
        });
    }
};

// Where the words of 4 bytes lie that hold some bytes: the first of these is byte `before` of them.
struct Words {
    int before, bytes;

    HVD_COMPRESS_TILE Words(const void* at, int count)
        : before(static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % 4)), bytes(count) {}
    HVD_COMPRESS_TILE int count() const { return (before + bytes + 3) / 4; }
    HVD_COMPRESS_TILE bool has_all_of(int word) const { return 4 * word >= before && 4 * word + 4 <= before + bytes; }
    HVD_COMPRESS_TILE bool has(int byte) const { return byte >= before && byte < before + bytes; }
};

template <int most>
struct WriteChunks {
    static constexpr int kThreads = kCodedThreads;
    struct Shared {
        PartBits bits;  // where each part begins
        std::uint32_t words[kCodedRows / coded_rows(most) * block_group_bytes(most) / 4 + 1];
    };
    const std::uint8_t* codes;
    std::int64_t n;
    CodedTables by;
    std::uint8_t* coded;
    const std::uint16_t* lengths;
    const Count *streamed, *sizes;
    std::int64_t chunks;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const ChunkOfCodes own = chunk_of_codes<most>(block.index, n);
        const std::uint8_t* const from = codes + own.first;
        const std::uint8_t table = coded[block.index];
        std::uint8_t* const out =
            coded + chunks + static_cast<std::int64_t>(streamed[chunks] * kLengthBytes + sizes[block.index]);
        if (table == kCodedRaw) {
            block.each([&](int t) {
                for (int i = t; i < own.bytes; i += kThreads) out[i] = from[i];
            });
            return;
        }
        const std::uint16_t* const lengths_here = lengths + block.index * kCodedStreams;
        const std::uint32_t* const words = by.words + table * coded_symbols(most);
        int bytes = 0;
        for (int j = 0; j < kCodedStreams; ++j) bytes += lengths_here[j];
        const Words span(out, bytes);
        block.each([&](int t) {
            for (int i = t; i < span.count(); i += kThreads) shared.words[i] = 0;
            const int part = t / kCodedStreams, j = t % kCodedStreams;
            shared.bits[part][j] = part_bits<most>(from, own.rows, part, j, words);
        });
        block.sync();
        block.each([&](int t) {
            if (t >= kCodedStreams) return;
            int begin = span.before;
            for (int j = 0; j < t; ++j) begin += lengths_here[j];
            std::uint32_t bit = static_cast<std::uint32_t>(8 * begin);
            for (int part = 0; part < kCodedParts; ++part) {
                const std::uint32_t taken = shared.bits[part][t];
                shared.bits[part][t] = bit;
                bit += taken;
            }
            std::uint8_t* const told = coded + chunks + static_cast<std::int64_t>(streamed[block.index] * kLengthBytes);
            told[2 * t] = static_cast<std::uint8_t>(lengths_here[t]);
            told[2 * t + 1] = static_cast<std::uint8_t>(lengths_here[t] >> 8);
        });
        block.sync();
        block.each([&](int t) {
            const int part = t / kCodedStreams, j = t % kCodedStreams;
            write(from, own.rows, part, j, words, shared.bits[part][j], shared.words);
        });
        block.sync();
        block.each([&](int t) {
            for (int i = t; i < span.count(); i += kThreads) {
                std::uint8_t* const at = out - span.before + 4 * i;
                if (span.has_all_of(i)) {
                    *reinterpret_cast<std::uint32_t*>(at) = shared.words[i];
                    continue;
                }
                for (int byte = 0; byte < 4; ++byte) {
                    if (span.has(4 * i + byte)) at[byte] = static_cast<std::uint8_t>(shared.words[i] >> 8 * byte);
                }
            }
        });
    }

  private:
    // The code words of a part, from a bit on. Neighbours write to the same words.
    static HVD_COMPRESS_TILE void write(const std::uint8_t* from, int rows, int part, int j, const std::uint32_t* words,
                                        std::uint32_t bit, std::uint32_t* out) {
        std::uint32_t* next = out + bit / 32;
        std::uint64_t held = 0;
        std::uint32_t count = bit % 32;
        for (int row = part * kCodedStep; row < (part + 1) * kCodedStep && row < rows; ++row) {
            const std::uint32_t word = words[symbol_at<most>(from, row, j)];
            held |= static_cast<std::uint64_t>(word >> 4) << count;
            count += word & 15;
            if (count < 32) continue;
            atomic_or(next++, static_cast<std::uint32_t>(held));
            held >>= 32;
            count -= 32;
        }
        if (held != 0) atomic_or(next, static_cast<std::uint32_t>(held));
    }
};

// As PlaceChunks, from what is coded. bad[0] is 1 where that cannot be.
template <int most>
struct PlaceCoded {
    static constexpr int kThreads = kPlaceThreads;
    using Shared = PlaceShared;
    const std::uint8_t* coded;
    std::int64_t bytes, n, chunks;
    Count *streamed, *sizes;
    std::int32_t* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            if (t < 2) bad[t] = t == 0 && bytes < chunks;
        });
        if (bytes < chunks) return;
        block.sync();
        each_row(block, chunks, [&](std::int64_t chunk) {
            const std::uint8_t table = coded[chunk];
            streamed[chunk] = table == kCodedRaw ? 0 : 1;
            if (table != kCodedRaw && table >= kCodedTables) store_same(bad, 1);
        });
        const Count with = place(block, shared, streamed, chunks);
        const std::int64_t begin = chunks + static_cast<std::int64_t>(with * kLengthBytes);
        if (bytes < begin) {
            block.each([&](int t) {
                if (t == 0) *bad = 1;
            });
            return;
        }
        each_row(block, chunks, [&](std::int64_t chunk) { sizes[chunk] = size_of(chunk); });
        block.sync();
        const Count all = place(block, shared, sizes, chunks);
        block.each([&](int t) {
            if (t != 0) return;
            streamed[chunks] = with;
            if (begin + static_cast<std::int64_t>(all) != bytes) *bad = 1;
        });
    }

  private:
    HVD_COMPRESS_TILE Count size_of(std::int64_t chunk) const {
        if (coded[chunk] == kCodedRaw) return static_cast<Count>(chunk_of_codes<most>(chunk, n).bytes);
        const std::uint8_t* const lengths = coded + chunks + static_cast<std::int64_t>(streamed[chunk] * kLengthBytes);
        Count sum = 0;
        for (int j = 0; j < kCodedStreams; ++j) sum += length_of(lengths, j);
        return sum;
    }
};

// bad[0] is of PlaceCoded: then nothing is read. bad[1] becomes 1 where the streams of a chunk are no code.
template <int most>
struct DecodeChunks {
    static constexpr int kThreads = kDecodedThreads;
    static constexpr int kLongest = coded_longest(most);
    static constexpr int kMostBytes = kCodedStreams * kCodedRows * kLongest / 8;
    struct Shared {
        std::uint32_t words[kMostBytes / 4 + 1 + 2];  // and two after the last
        std::uint16_t symbols[kCodedRows * kCodedStreams];
    };
    const std::uint8_t* coded;
    std::int64_t n;
    CodedTables by;
    const Count *streamed, *sizes;
    std::int64_t chunks;
    std::uint8_t* codes;
    std::int32_t* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (bad[0] != 0) return;
        const ChunkOfCodes own = chunk_of_codes<most>(block.index, n);
        const std::uint8_t table = coded[block.index];
        const std::uint8_t* const from =
            coded + chunks + static_cast<std::int64_t>(streamed[chunks] * kLengthBytes + sizes[block.index]);
        if (table == kCodedRaw) {
            block.each([&](int t) {
                for (int i = t; i < own.bytes; i += kThreads) codes[own.first + i] = from[i];
            });
            return;
        }
        const std::uint8_t* const lengths =
            coded + chunks + static_cast<std::int64_t>(streamed[block.index] * kLengthBytes);
        int bytes = 0;
        for (int j = 0; j < kCodedStreams; ++j) bytes += length_of(lengths, j);
        if (bytes > kMostBytes) {
            block.each([&](int t) {
                if (t == 0) store_same(bad + 1, 1);
            });
            return;
        }
        const Words span(from, bytes);
        block.each([&](int t) {
            for (int i = t; i < span.count(); i += kThreads) {
                const std::uint8_t* const at = from - span.before + 4 * i;
                if (span.has_all_of(i)) {
                    shared.words[i] = *reinterpret_cast<const std::uint32_t*>(at);
                    continue;
                }
                std::uint32_t word = 0;
                for (int byte = 0; byte < 4; ++byte) {
                    if (span.has(4 * i + byte)) word |= static_cast<std::uint32_t>(at[byte]) << 8 * byte;
                }
                shared.words[i] = word;
            }
            if (t < 2) shared.words[span.count() + t] = 0;
        });
        block.sync();
        const std::uint16_t* const numbers = by.numbers + (static_cast<std::int64_t>(table) << kLongest);
        block.each([&](int t) {
            if (t >= kCodedStreams) return;
            int begin = span.before;
            for (int j = 0; j < t; ++j) begin += length_of(lengths, j);
            const int end = begin + length_of(lengths, t);
            if (!read(shared.words, 8 * begin, 8 * end, numbers, own.rows, shared.symbols + t)) store_same(bad + 1, 1);
        });
        block.sync();
        block.each([&](int t) {
            for (int i = t; i < own.bytes; i += kThreads) codes[own.first + i] = byte_of<most>(shared.symbols, i);
        });
    }

  private:
    // 64 bits from bit `at` on, with zeros from bit `end` on.
    static HVD_COMPRESS_TILE std::uint64_t bits_at(const std::uint32_t* words, int at, int end) {
        if (at >= end) return 0;
        const std::uint32_t* const own = words + at / 32;
        const int shift = at % 32;
        std::uint64_t found = (own[0] | static_cast<std::uint64_t>(own[1]) << 32) >> shift;
        if (shift > 0) found |= static_cast<std::uint64_t>(own[2]) << (64 - shift);
        return end - at < 64 ? found & ((std::uint64_t{1} << (end - at)) - 1) : found;
    }

    // Reads the symbols of a stream. Returns whether their words fill it, but for less than a byte of zeros.
    static HVD_COMPRESS_TILE bool read(const std::uint32_t* words, int at, int end, const std::uint16_t* numbers,
                                       int rows, std::uint16_t* symbols) {
        constexpr int kAtOnce = 64 / kLongest;
        for (int row = 0; row < rows;) {
            std::uint64_t held = bits_at(words, at, end);
            for (int i = 0; i < kAtOnce && row < rows; ++i, ++row) {
                const std::uint32_t found = numbers[held & ((1u << kLongest) - 1)];
                held >>= found & 15;
                at += static_cast<int>(found & 15);
                symbols[row * kCodedStreams] = static_cast<std::uint16_t>(found >> 4);
            }
        }
        return at <= end && end - at < 8 && bits_at(words, at, end) == 0;
    }
};

}  // namespace hvd_compress::cuda
