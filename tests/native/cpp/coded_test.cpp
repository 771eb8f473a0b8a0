// Payloads of the coder that are damaged, for AddressSanitizer and UndefinedBehaviorSanitizer: tools/sanitize.py builds
// and runs it.
//
//     coded_test [COUNT [SEED]]
//
// Memory ends where a payload, or what is made of it, ends. Each damaged payload is refused, or is that of codes. One
// of kPlayedEach is also given to the GPU's twin, played by one thread, which must say the same, and encode all codes
// alike. Ends with status 0 if all is well.
#include "hvd_compress/coded.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../../../csrc/cpu/coded/table.hpp"
#include "../../../csrc/cpu/pool/pool.hpp"

namespace {

using namespace hvd_compress;
using Random = std::mt19937_64;

constexpr int kMosts[] = {7, 3, 2, 1}, kPlayedEach = 64, kPayloads = 200;

void expect(bool holds, const char* what, std::int64_t number) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s, payload %lld\n", what, static_cast<long long>(number));
    std::exit(1);
}

// Exactly as many bytes, so that what lies beyond them is found.
struct Bytes {
    std::unique_ptr<std::uint8_t[]> data;
    std::int64_t count;

    explicit Bytes(std::int64_t n) : data(new std::uint8_t[static_cast<std::size_t>(n)]), count(n) {}
    bool operator==(const Bytes& other) const {
        return count == other.count && std::memcmp(data.get(), other.data.get(), static_cast<std::size_t>(count)) == 0;
    }
};

// A whole number within -most..most; `spread` from 0, for zeros, to 1.
int drawn(Random& random, int most, double spread) {
    const double x = std::normal_distribution<double>(0.0, spread * most / 1.5 + 1e-9)(random);
    return x > most ? most : x < -most ? -most : static_cast<int>(x < 0 ? x - 0.5 : x + 0.5);
}

// The codes of n elements, as blocks.hpp has them.
Bytes codes_of(Random& random, std::int64_t n, int most, double spread) {
    Bytes codes(block_code_bytes(n, most));
    std::memset(codes.data.get(), 0, static_cast<std::size_t>(codes.count));
    const int bytes = block_group_bytes(most);
    for (std::int64_t group = 0; group < codes.count / bytes; ++group) {
        std::uint8_t* const own = codes.data.get() + group * bytes;
        for (int j = 0; j < 16 * coded_rows(most); ++j) {
            if (!has_digits(most)) {
                const int bits = most == 7 ? 4 : 2;
                for (int part = 0; part < 8 / bits; ++part) {
                    own[j] |=
                        static_cast<std::uint8_t>((drawn(random, most, spread) & ((1 << bits) - 1)) << part * bits);
                }
                continue;
            }
            int number = 0;
            for (int part = 0; part < 4; ++part)
                number = number * digit_base(most) + drawn(random, most, spread) + most;
            own[j] = static_cast<std::uint8_t>(number);
            const int bits = bits_above_byte(most);
            own[16 + j * bits / 8] |= static_cast<std::uint8_t>(number >> 8 << j * bits % 8);
        }
    }
    return codes;
}

struct Tables {
    std::vector<std::uint32_t> words;
    std::vector<std::uint8_t> lengths;
    std::vector<std::uint16_t> numbers;

    explicit Tables(int most) {
        const cpu::CodeTables& by = cpu::code_tables(most);
        for (const cpu::CodeTable& table : by.tables) {
            words.insert(words.end(), table.words.begin(), table.words.end());
            numbers.insert(numbers.end(), table.numbers.begin(), table.numbers.end());
        }
        for (const auto& own : by.lengths) lengths.insert(lengths.end(), own.begin(), own.end());
    }
    cuda::CodedTables read() const { return {words.data(), lengths.data(), numbers.data()}; }
};

// Of each `most`.
const Tables& tables_of(int most) {
    static const Tables tables[] = {Tables(7), Tables(3), Tables(2), Tables(1)};
    int which = 0;
    while (kMosts[which] != most) ++which;
    return tables[which];
}

// Memory of the GPU's twin, aligned as it wants it.
struct Memory {
    std::size_t bytes;
    std::unique_ptr<std::uint64_t[]> data;

    Memory(std::int64_t n, int most)
        : bytes(cuda::coded_workspace_bytes(n, most)), data(new std::uint64_t[bytes / 8 + 1]) {}
    Workspace workspace() const { return {data.get(), bytes}; }
};

Bytes played_encode(const Bytes& codes, std::int64_t n, int most) {
    Bytes room(coded_bytes(n, most));
    const Memory memory(n, most);
    std::int64_t bytes = 0;
    expect(cuda::block_encode(codes.data.get(), n, most, tables_of(most).read(), room.data.get(), &bytes,
                              memory.workspace(), nullptr) == Status::kOk,
           "runs", -1);
    Bytes found(bytes);
    std::memcpy(found.data.get(), room.data.get(), static_cast<std::size_t>(bytes));
    return found;
}

struct Payload {
    int most;
    std::int64_t n;
    Bytes coded;
};

Payload payload(Random& random) {
    const int most = kMosts[random() % 4];
    const std::int64_t n = random() % 8 == 0 ? 16000 + static_cast<std::int64_t>(random() % 20000)
                                             : static_cast<std::int64_t>(random() % 700);
    Bytes codes = codes_of(random, n, most, static_cast<double>(random() % 100) / 100);
    if (random() % 10 == 0 && codes.count > 0) codes.data[0] = 0xff;
    const std::int64_t chunk = chunk_groups(most) * block_group_bytes(most);
    if (random() % 2 == 0 && codes.count > chunk) {  // which stays as it is, before another one
        for (std::int64_t i = 0; i < chunk; ++i) codes.data[i] = static_cast<std::uint8_t>(random());
    }
    Bytes room(coded_bytes(n, most));
    std::int64_t bytes = 0;
    expect(cpu::block_encode(codes.data.get(), n, most, room.data.get(), &bytes) == Status::kOk, "encodes", -1);
    Payload found{most, n, Bytes(bytes)};
    std::memcpy(found.coded.data.get(), room.data.get(), static_cast<std::size_t>(bytes));
    Bytes back(codes.count);
    expect(cpu::block_decode(found.coded.data.get(), bytes, n, most, back.data.get()) == Status::kOk, "decodes", -1);
    expect(back == codes, "decodes what was encoded", -1);
    expect(played_encode(codes, n, most) == found.coded, "twins encode the same", -1);
    return found;
}

// Some bytes changed, half of them among tables and lengths; sometimes cut, or longer.
Bytes damaged(Random& random, const Payload& whole) {
    const std::int64_t old = whole.coded.count;
    std::int64_t count = old;
    if (random() % 8 == 0) count = random() % 2 ? old + static_cast<std::int64_t>(random() % 9) : old - old / 9;
    Bytes found(count);
    std::memset(found.data.get(), 0, static_cast<std::size_t>(count));
    std::memcpy(found.data.get(), whole.coded.data.get(), static_cast<std::size_t>(count < old ? count : old));
    const auto head = static_cast<std::uint64_t>(coded_chunks(whole.n, whole.most) * (1 + kLengthBytes));
    for (std::uint64_t left = random() % 5; left > 0 && count > 0; --left) {
        const std::uint64_t all = static_cast<std::uint64_t>(count), within = random() % 2 && head < all ? head : all;
        std::uint8_t& byte = found.data[random() % within];
        const std::uint64_t how = random() % 4;
        byte = static_cast<std::uint8_t>(how == 0   ? random()
                                         : how == 1 ? byte ^ 1 << random() % 8
                                         : how == 2 ? byte + 1
                                                    : 255);
    }
    return found;
}

// What the GPU's twin says of a payload; `codes` are what it makes of it.
bool plays(const Payload& whole, const Bytes& bad, Bytes& codes) {
    const Memory memory(whole.n, whole.most);
    std::int32_t wrong[2];
    const Status status =
        cuda::block_decode(bad.data.get(), bad.count, whole.n, whole.most, tables_of(whole.most).read(),
                           codes.data.get(), wrong, memory.workspace(), nullptr);
    expect(status == Status::kOk, "runs", -1);
    return wrong[0] == 0 && wrong[1] == 0;
}

}  // namespace

int main(int words, char** word) {
    const std::int64_t count = words > 1 ? std::atoll(word[1]) : 100000;
    Random random(words > 2 ? std::strtoull(word[2], nullptr, 0) : 1);
    cpu::set_num_threads(1);
    std::vector<Payload> payloads;
    while (payloads.size() < kPayloads) payloads.push_back(payload(random));
    std::int64_t accepted = 0, played = 0;
    for (std::int64_t number = 0; number < count; ++number) {
        const Payload& whole = payloads[random() % kPayloads];
        const Bytes bad = damaged(random, whole);
        Bytes codes(block_code_bytes(whole.n, whole.most)), others(codes.count);
        const bool good =
            cpu::block_decode(bad.data.get(), bad.count, whole.n, whole.most, codes.data.get()) == Status::kOk;
        accepted += good;
        if (random() % kPlayedEach == 0) {
            ++played;
            expect(plays(whole, bad, others) == good, "twins agree", number);
            expect(!good || others == codes, "twins decode the same", number);
        }
        if (!good || random() % 16 != 0) continue;
        Bytes again(coded_bytes(whole.n, whole.most));
        std::int64_t bytes = 0;
        expect(cpu::block_encode(codes.data.get(), whole.n, whole.most, again.data.get(), &bytes) == Status::kOk,
               "encodes what was accepted", number);
        expect(cpu::block_decode(again.data.get(), bytes, whole.n, whole.most, others.data.get()) == Status::kOk,
               "decodes that", number);
        expect(others == codes, "which is what was accepted", number);
    }
    std::printf("%lld damaged payloads: %lld accepted, as codes; %lld also by the GPU's twin\n",
                static_cast<long long>(count), static_cast<long long>(accepted), static_cast<long long>(played));
}
