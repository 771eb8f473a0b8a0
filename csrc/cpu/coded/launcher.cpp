#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "../pool/pool.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/dispatch.hpp"
#include "table.hpp"

namespace hvd_compress::cpu {
namespace {

using Numbers = std::uint16_t[kCodedStreams];

constexpr std::int64_t groups_of(std::int64_t n) { return n / kBlockGroup + (n % kBlockGroup != 0); }

Status check(std::int64_t n, int most) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return is_codable(most) ? Status::kOk : Status::kBadSize;
}

// The numbers of a group, and back.
template <int most>
inline void read_group(const std::uint8_t* codes, Numbers* rows) {
    if constexpr (has_digits(most)) {
        constexpr int bits = bits_above_byte(most), mask = (1 << bits) - 1;
        for (int j = 0; j < kCodedStreams; ++j) {
            const int above = codes[kCodedStreams + j * bits / 8] >> j * bits % 8 & mask;
            rows[0][j] = static_cast<std::uint16_t>(codes[j] | above << 8);
        }
    } else {
        for (int i = 0; i < coded_rows(most) * kCodedStreams; ++i)
            rows[i / kCodedStreams][i % kCodedStreams] = codes[i];
    }
}

template <int most>
inline void write_group(const Numbers* rows, std::uint8_t* codes) {
    for (int i = 0; i < coded_rows(most) * kCodedStreams; ++i) {
        codes[i] = static_cast<std::uint8_t>(rows[i / kCodedStreams][i % kCodedStreams]);
    }
    if constexpr (has_digits(most)) {
        constexpr int bits = bits_above_byte(most), together = 8 / bits;
        for (int byte = 0; byte < kCodedStreams / together; ++byte) {
            int above = 0;
            for (int j = 0; j < together; ++j) above |= rows[0][byte * together + j] >> 8 << j * bits;
            codes[kCodedStreams + byte] = static_cast<std::uint8_t>(above);
        }
    }
}

// A chunk's numbers: those of stream j are in column j.
using Chunk = Numbers[kCodedRows];

// As many code words as fit into 64 bits beside the 7 that may be held.
constexpr int kAtOnce = 4;
static_assert(7 + kAtOnce * coded_longest(3) <= 63 && kCodedRows % kAtOnce == 0);

// Appends code words to a stream. It writes 8 bytes at a time, of which the last ones do not count.
struct Writer {
    std::uint8_t* next;
    std::uint64_t held = 0;
    int count = 0;  // bits that are held

    // At most kAtOnce of these before flush().
    void put(std::uint32_t word) {
        held |= static_cast<std::uint64_t>(word >> 4) << count;
        count += static_cast<int>(word & 15);
    }
    void flush() {
        std::memcpy(next, &held, 8);
        next += count / 8;
        held >>= count & ~7;
        count &= 7;
    }
};

// Takes code words from a stream. After its end are zeros.
struct Reader {
    const std::uint8_t* begin = nullptr;
    std::int64_t bytes = 0, next = 0;  // of the stream; where the next one lies, perhaps after the end
    std::uint64_t held = 0;
    int count = 0;  // bits that are held

    // There are bits for kAtOnce code words then.
    void refill() {
        std::uint64_t read = 0;
        if (next + 8 <= bytes) {
            std::memcpy(&read, begin + next, 8);
        } else if (next < bytes) {
            std::memcpy(&read, begin + next, static_cast<std::size_t>(bytes - next));
        }
        held |= read << count;
        next += (63 - count) / 8;
        count |= 56;
    }
    template <int longest>
    std::uint32_t take(const std::uint16_t* numbers) {
        const std::uint32_t found = numbers[held & ((1u << longest) - 1)];
        held >>= found & 15;
        count -= static_cast<int>(found & 15);
        return found >> 4;
    }
    // Whether the words filled the stream, but for less than a byte of zeros.
    bool is_over() const {
        const std::int64_t taken = 8 * next - count, left = 8 * bytes - taken;
        return left >= 0 && left < 8 && (held & ((1u << left) - 1)) == 0;
    }
};

// A chunk's streams, each in memory for the longest and what a writer writes after it.
using Streams = std::uint8_t[kCodedStreams][kCodedRows * coded_longest(3) / 8 + 8];

// The table by which a sample of the symbols is shortest.
int best_table(const CodeTables& by, const Chunk& numbers, std::int64_t rows) {
    static_assert(kCodedRows / kCodedStep * kCodedStreams * 15 < 65536);
    std::uint16_t bits[kCodedTables] = {};
    for (std::int64_t row = 0; row < rows; row += kCodedStep) {
        for (const std::uint16_t number : numbers[row]) {
            const std::uint8_t* const lengths = by.lengths[number].data();
            for (int table = 0; table < kCodedTables; ++table) bits[table] += lengths[table];
        }
    }
    return static_cast<int>(std::min_element(bits, bits + kCodedTables) - bits);
}

// Encodes a chunk. Returns the table, or kCodedRaw where that has no word for a number: there are others than those of
// whoever quantised by blocks.hpp.
template <int most>
std::uint8_t encode(const std::uint8_t* codes, std::int64_t groups, const CodeTables& by, Streams& streams,
                    std::uint16_t* lengths) {
    Chunk numbers;
    for (std::int64_t group = 0; group < groups; ++group) {
        read_group<most>(codes + group * block_group_bytes(most), numbers + group * coded_rows(most));
    }
    const std::int64_t rows = groups * coded_rows(most);
    const int table = best_table(by, numbers, rows);
    const std::uint32_t* const words = by.tables[table].words.data();
    std::uint32_t missing = 0;
    for (int j = 0; j < kCodedStreams; ++j) {
        Writer writer{streams[j]};
        const auto put = [&](std::int64_t row) {
            const std::uint32_t word = words[numbers[row][j]];
            missing |= word == 0;
            writer.put(word);
        };
        std::int64_t row = 0;
        for (; row + kAtOnce <= rows; row += kAtOnce, writer.flush()) {
            for (int i = 0; i < kAtOnce; ++i) put(row + i);
        }
        for (; row < rows; ++row, writer.flush()) put(row);
        lengths[j] = static_cast<std::uint16_t>(writer.next - streams[j] + (writer.count > 0));
    }
    return missing == 0 ? static_cast<std::uint8_t>(table) : kCodedRaw;
}

template <int most>
bool decode(const std::uint8_t* coded, const std::uint16_t* lengths, std::int64_t groups, const CodeTable& table,
            std::uint8_t* codes) {
    constexpr int kAbreast = 4;  // streams, whose look-ups do not wait for each other
    Chunk numbers;
    const std::uint16_t* const by_bits = table.numbers.data();
    const std::int64_t rows = groups * coded_rows(most);
    bool good = true;
    for (int first = 0; first < kCodedStreams; first += kAbreast) {
        Reader readers[kAbreast];
        for (int j = 0; j < kAbreast; coded += lengths[first + j++]) {
            readers[j].begin = coded;
            readers[j].bytes = lengths[first + j];
        }
        std::int64_t row = 0;
        for (; row + kAtOnce <= rows; row += kAtOnce) {
            for (int j = 0; j < kAbreast; ++j) readers[j].refill();
            for (int i = 0; i < kAtOnce; ++i) {
                for (int j = 0; j < kAbreast; ++j)
                    numbers[row + i][first + j] = readers[j].take<coded_longest(most)>(by_bits);
            }
        }
        for (; row < rows; ++row) {
            for (int j = 0; j < kAbreast; ++j) {
                readers[j].refill();
                numbers[row][first + j] = readers[j].take<coded_longest(most)>(by_bits);
            }
        }
        for (const Reader& reader : readers) good = good && reader.is_over();
    }
    for (std::int64_t group = 0; group < groups; ++group) {
        write_group<most>(numbers + group * coded_rows(most), codes + group * block_group_bytes(most));
    }
    return good;
}

// Where a chunk lies: its groups, the number among the chunks that have streams, and its first byte.
struct Place {
    std::int64_t first, groups, streamed, at;
};

// The places of chunks by their tables and the lengths of streams, which follow `begin`; the last has the end.
template <int most>
std::vector<Place> places_of(std::int64_t groups, const std::uint8_t* tables, const std::uint16_t* lengths,
                             std::int64_t begin) {
    std::vector<Place> places;
    Place place{0, 0, 0, begin};
    for (std::int64_t chunk = 0; place.first < groups; ++chunk, place.first += chunk_groups(most)) {
        place.groups = std::min<std::int64_t>(chunk_groups(most), groups - place.first);
        places.push_back(place);
        if (tables[chunk] == kCodedRaw) {
            place.at += place.groups * block_group_bytes(most);
            continue;
        }
        for (int j = 0; j < kCodedStreams; ++j) place.at += lengths[place.streamed * kCodedStreams + j];
        ++place.streamed;
    }
    places.push_back(place);
    return places;
}

template <int most>
std::int64_t encode_all(const std::uint8_t* codes, std::int64_t n, std::uint8_t* coded) {
    constexpr int kBytes = block_group_bytes(most);
    const std::int64_t groups = groups_of(n), chunks = coded_chunks(n, most);
    std::vector<std::uint16_t> lengths(chunks * kCodedStreams);
    const std::unique_ptr<Streams[]> streams(new Streams[chunks]);
    std::uint8_t* const tables = coded;
    const CodeTables& by = code_tables(most);
    parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t first = chunk * chunk_groups(most),
                           count = std::min<std::int64_t>(chunk_groups(most), groups - first);
        std::uint16_t* const own = &lengths[chunk * kCodedStreams];
        tables[chunk] = encode<most>(codes + first * kBytes, count, by, streams[chunk], own);
        if (std::accumulate(own, own + kCodedStreams, std::int64_t{kLengthBytes}) >= count * kBytes)
            tables[chunk] = kCodedRaw;
    });
    std::int64_t streamed = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        if (tables[chunk] == kCodedRaw) continue;
        if (streamed < chunk) {
            std::copy_n(&lengths[chunk * kCodedStreams], kCodedStreams, &lengths[streamed * kCodedStreams]);
        }
        ++streamed;
    }
    const std::int64_t begin = chunks + streamed * kLengthBytes;
    if (streamed > 0) std::memcpy(coded + chunks, lengths.data(), streamed * kLengthBytes);
    const std::vector<Place> places = places_of<most>(groups, tables, lengths.data(), begin);
    parallel_for(chunks, [&](std::int64_t chunk) {
        const Place& place = places[chunk];
        std::uint8_t* out = coded + place.at;
        if (tables[chunk] == kCodedRaw) {
            std::memcpy(out, codes + place.first * kBytes, place.groups * kBytes);
            return;
        }
        for (int j = 0; j < kCodedStreams; ++j) {
            const std::int64_t length = lengths[place.streamed * kCodedStreams + j];
            std::memcpy(out, streams[chunk][j], length);
            out += length;
        }
    });
    return places[chunks].at;
}

template <int most>
bool decode_all(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, std::uint8_t* codes) {
    constexpr int kBytes = block_group_bytes(most);
    const std::int64_t groups = groups_of(n), chunks = coded_chunks(n, most);
    if (bytes < chunks) return false;
    const std::uint8_t* const tables = coded;
    std::int64_t streamed = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        if (tables[chunk] == kCodedRaw) continue;
        if (tables[chunk] >= kCodedTables) return false;
        ++streamed;
    }
    const std::int64_t begin = chunks + streamed * kLengthBytes;
    if (bytes < begin) return false;
    std::vector<std::uint16_t> lengths(streamed * kCodedStreams);
    if (streamed > 0) std::memcpy(lengths.data(), coded + chunks, streamed * kLengthBytes);
    const std::vector<Place> places = places_of<most>(groups, tables, lengths.data(), begin);
    if (places[chunks].at != bytes) return false;
    std::atomic<bool> good{true};
    const CodeTables& by = code_tables(most);
    parallel_for(chunks, [&](std::int64_t chunk) {
        const Place& place = places[chunk];
        if (tables[chunk] == kCodedRaw) {
            std::memcpy(codes + place.first * kBytes, coded + place.at, place.groups * kBytes);
        } else if (!decode<most>(coded + place.at, &lengths[place.streamed * kCodedStreams], place.groups,
                                 by.tables[tables[chunk]], codes + place.first * kBytes)) {
            good.store(false, std::memory_order_relaxed);
        }
    });
    return good.load(std::memory_order_relaxed);
}

}  // namespace

Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, std::uint8_t* coded,
                    std::int64_t* bytes) noexcept {
    if (const Status status = check(n, most); status != Status::kOk) return status;
    try {
        *bytes = with_codable(most, [&](auto constant) { return encode_all<constant.value>(codes, n, coded); });
    } catch (const std::bad_alloc&) {
        return Status::kWorkspaceTooSmall;
    }
    return Status::kOk;
}

Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most,
                    std::uint8_t* codes) noexcept {
    if (const Status status = check(n, most); status != Status::kOk) return status;
    try {
        const bool good =
            with_codable(most, [&](auto constant) { return decode_all<constant.value>(coded, bytes, n, codes); });
        return good ? Status::kOk : Status::kBadPayload;
    } catch (const std::bad_alloc&) {
        return Status::kWorkspaceTooSmall;
    }
}

}  // namespace hvd_compress::cpu
