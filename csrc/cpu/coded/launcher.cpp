#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "../pool/pool.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/dispatch.hpp"
#include "table.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kLengthBytes = 2 * kCodedStreams;  // of a chunk
using Numbers = std::uint32_t[kCodedStreams];

std::int64_t groups_of(std::int64_t n) { return block_code_bytes(n, 1) / block_group_bytes(1); }

Status check(std::int64_t n, int most) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return has_digits(most) ? Status::kOk : Status::kBadSize;
}

// The numbers of a group, and back.
template <int most>
inline void read_group(const std::uint8_t* codes, Numbers& numbers) {
    constexpr int bits = bits_above_byte(most), mask = (1 << bits) - 1;
    for (int j = 0; j < kCodedStreams; ++j) {
        const int above = codes[kCodedStreams + j * bits / 8] >> j * bits % 8 & mask;
        numbers[j] = static_cast<std::uint32_t>(codes[j] | above << 8);
    }
}

template <int most>
inline void write_group(const Numbers& numbers, std::uint8_t* codes) {
    constexpr int bits = bits_above_byte(most), together = 8 / bits;
    for (int j = 0; j < kCodedStreams; ++j) codes[j] = static_cast<std::uint8_t>(numbers[j]);
    for (int byte = 0; byte < kCodedStreams / together; ++byte) {
        std::uint32_t above = 0;
        for (int j = 0; j < together; ++j) above |= numbers[byte * together + j] >> 8 << j * bits;
        codes[kCodedStreams + byte] = static_cast<std::uint8_t>(above);
    }
}

// Appends code words to a stream. It writes 8 bytes at a time, of which the last ones do not count.
struct Writer {
    std::uint8_t* next;
    std::uint64_t held = 0;
    int count = 0;  // bits that are held, fewer than 8 before a word comes

    void put(std::uint32_t word) {
        held |= static_cast<std::uint64_t>(word >> 4) << count;
        count += static_cast<int>(word & 15);
        std::memcpy(next, &held, 8);
        next += count / 8;
        held >>= count & ~7;
        count &= 7;
    }
};

// Takes code words from a stream. Behind its end are zeros.
struct Reader {
    const std::uint8_t *next, *end;
    std::uint64_t held = 0;
    int count = 0;          // bits that are held
    std::int64_t left = 0;  // bits of the stream, less those that were taken; below zero where too many were

    Reader() = default;
    Reader(const std::uint8_t* begin, std::int64_t bytes) : next(begin), end(begin + bytes), left(8 * bytes) {}

    // There are at least kCodedLongest bits then.
    void refill() {
        if (end - next >= 8) {
            std::uint64_t bytes;
            std::memcpy(&bytes, next, 8);
            held |= bytes << count;
            next += (63 - count) / 8;
            count |= 56;
            return;
        }
        for (; next < end && count < 56; count += 8) held |= static_cast<std::uint64_t>(*next++) << count;
        count = std::max(count, 56);
    }
    std::uint32_t take(const CodeTable& table) {
        refill();
        const std::uint32_t found = table.numbers[held & ((1u << kCodedLongest) - 1)];
        const int length = found & 15;
        held >>= length;
        count -= length;
        left -= length == 0 ? std::int64_t{1} << 40 : length;  // there is no such word
        return found >> 4;
    }
    // Whether the words filled the stream, but for less than a byte of zeros.
    bool is_over() const { return left >= 0 && left < 8 && (held & ((1u << left) - 1)) == 0; }
};

// A chunk's streams, each in memory for the longest and what a writer writes behind it.
constexpr std::int64_t kStreamBytes = kCodedChunk * kCodedLongest / 8 + 8;
using Streams = std::uint8_t[kCodedStreams][kStreamBytes];

// Encodes a chunk. Returns whether the table has a word for each number: there are others than those of whoever
// quantised by blocks.hpp.
template <int most>
bool encode(const std::uint8_t* codes, std::int64_t groups, const CodeTable& table, Streams& streams,
            std::uint16_t* lengths) {
    Writer writers[kCodedStreams];
    for (int j = 0; j < kCodedStreams; ++j) writers[j].next = streams[j];
    bool all = true;
    Numbers numbers;
    const std::uint32_t* const words = table.words.data();
    for (std::int64_t group = 0; group < groups; ++group) {
        read_group<most>(codes + group * block_group_bytes(most), numbers);
        for (int j = 0; j < kCodedStreams; ++j) {
            const std::uint32_t word = words[numbers[j]];
            writers[j].put(word);
            all &= (word & 15) != 0;
        }
    }
    for (int j = 0; j < kCodedStreams; ++j) {
        lengths[j] = static_cast<std::uint16_t>(writers[j].next - streams[j] + (writers[j].count > 0));
    }
    return all;
}

template <int most>
bool decode(const std::uint8_t* coded, const std::uint16_t* lengths, std::int64_t groups, const CodeTable& table,
            std::uint8_t* codes) {
    Reader readers[kCodedStreams];
    for (int j = 0; j < kCodedStreams; coded += lengths[j++]) readers[j] = Reader(coded, lengths[j]);
    Numbers numbers;
    for (std::int64_t group = 0; group < groups; ++group) {
        for (int j = 0; j < kCodedStreams; ++j) numbers[j] = readers[j].take(table);
        write_group<most>(numbers, codes + group * block_group_bytes(most));
    }
    return std::all_of(readers, readers + kCodedStreams, [](const Reader& reader) { return reader.is_over(); });
}

// The table by which a sample of the codes is shortest.
template <int most>
int best_table(const std::uint8_t* codes, std::int64_t groups) {
    constexpr std::int64_t kSampled = 512;
    const std::int64_t step = std::max<std::int64_t>(1, groups / kSampled);
    std::int64_t bits[kCodedTables] = {};
    Numbers numbers;
    for (std::int64_t group = 0; group < groups; group += step) {
        read_group<most>(codes + group * block_group_bytes(most), numbers);
        for (int table = 0; table < kCodedTables; ++table) {
            const CodeTable& by = code_table(most, table);
            for (const std::uint32_t number : numbers) bits[table] += by.length(number);
        }
    }
    return static_cast<int>(std::min_element(bits, bits + kCodedTables) - bits);
}

std::int64_t sum_of(const std::uint16_t* lengths, std::int64_t count) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += lengths[i];
    return sum;
}

// Calls body(chunk, its first group, its groups, where its streams begin) of each chunk, in threads.
template <class Body>
void for_each_chunk(std::int64_t groups, const std::vector<std::uint16_t>& lengths, const Body& body) {
    const auto chunks = static_cast<std::int64_t>(lengths.size()) / kCodedStreams;
    std::vector<std::int64_t> starts(chunks);
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
        starts[chunk] = starts[chunk - 1] + sum_of(&lengths[(chunk - 1) * kCodedStreams], kCodedStreams);
    }
    parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t first = chunk * kCodedChunk;
        body(chunk, first, std::min<std::int64_t>(kCodedChunk, groups - first), starts[chunk]);
    });
}

template <int most>
std::int64_t encode_all(const std::uint8_t* codes, std::int64_t n, std::uint8_t* coded) {
    constexpr int kBytes = block_group_bytes(most);
    const std::int64_t groups = groups_of(n), chunks = coded_chunks(n);
    const int number = best_table<most>(codes, groups);
    const CodeTable& table = code_table(most, number);
    std::vector<std::uint16_t> lengths(chunks * kCodedStreams);
    const std::unique_ptr<Streams[]> streams(new Streams[chunks]);
    std::atomic<bool> codable{true};
    parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t first = chunk * kCodedChunk, count = std::min<std::int64_t>(kCodedChunk, groups - first);
        if (!encode<most>(codes + first * kBytes, count, table, streams[chunk], &lengths[chunk * kCodedStreams])) {
            codable.store(false, std::memory_order_relaxed);
        }
    });
    const std::int64_t bytes = 1 + chunks * kLengthBytes + sum_of(lengths.data(), chunks * kCodedStreams);
    if (!codable.load(std::memory_order_relaxed) || bytes > coded_bytes(n, most)) {
        coded[0] = kCodedRaw;
        std::memcpy(coded + 1, codes, groups * kBytes);
        return coded_bytes(n, most);
    }
    coded[0] = static_cast<std::uint8_t>(number);
    std::memcpy(coded + 1, lengths.data(), chunks * kLengthBytes);
    for_each_chunk(groups, lengths, [&](std::int64_t chunk, std::int64_t, std::int64_t, std::int64_t at) {
        std::uint8_t* out = coded + 1 + chunks * kLengthBytes + at;
        for (int j = 0; j < kCodedStreams; ++j) {
            const std::int64_t length = lengths[chunk * kCodedStreams + j];
            std::memcpy(out, streams[chunk][j], length);
            out += length;
        }
    });
    return bytes;
}

template <int most>
bool decode_all(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, std::uint8_t* codes) {
    constexpr int kBytes = block_group_bytes(most);
    const std::int64_t groups = groups_of(n), chunks = coded_chunks(n);
    if (bytes < 1) return groups == 0;
    if (coded[0] == kCodedRaw) {
        if (bytes != coded_bytes(n, most)) return false;
        std::memcpy(codes, coded + 1, groups * kBytes);
        return true;
    }
    if (coded[0] >= kCodedTables || bytes < 1 + chunks * kLengthBytes) return false;
    const CodeTable& table = code_table(most, coded[0]);
    std::vector<std::uint16_t> lengths(chunks * kCodedStreams);
    std::memcpy(lengths.data(), coded + 1, chunks * kLengthBytes);
    if (bytes != 1 + chunks * kLengthBytes + sum_of(lengths.data(), chunks * kCodedStreams)) return false;
    const std::uint8_t* const streams = coded + 1 + chunks * kLengthBytes;
    std::atomic<bool> good{true};
    for_each_chunk(groups, lengths, [&](std::int64_t chunk, std::int64_t first, std::int64_t count, std::int64_t at) {
        const std::uint16_t* const own = &lengths[chunk * kCodedStreams];
        if (!decode<most>(streams + at, own, count, table, codes + first * kBytes)) {
            good.store(false, std::memory_order_relaxed);
        }
    });
    return good.load(std::memory_order_relaxed);
}

}  // namespace

Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, std::uint8_t* coded,
                    std::int64_t* bytes) noexcept {
    if (const Status status = check(n, most); status != Status::kOk) return status;
    *bytes = most == 3 ? encode_all<3>(codes, n, coded) : encode_all<2>(codes, n, coded);
    return Status::kOk;
}

Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most,
                    std::uint8_t* codes) noexcept {
    if (const Status status = check(n, most); status != Status::kOk) return status;
    const bool good = most == 3 ? decode_all<3>(coded, bytes, n, codes) : decode_all<2>(coded, bytes, n, codes);
    return good ? Status::kOk : Status::kBadPayload;
}

}  // namespace hvd_compress::cpu
