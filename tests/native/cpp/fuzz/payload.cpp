#include "payload.hpp"

#include <algorithm>
#include <cstring>

namespace fuzz {
namespace {

constexpr std::size_t kName = 32;

// Lengths, indices and scales that are wrong, or right at the edge: 8, 4 and 2 bytes.
std::uint64_t special(Random& random, std::int64_t n, std::size_t bytes) {
    const auto edge = static_cast<std::uint64_t>(n + random.below(3) - 1);
    static constexpr std::uint64_t wide[] = {~0ull, 0, 1, 2, 1ull << 31, ~0ull >> 1, 1ull << 63};
    // -1, 0, 1, INT_MAX, INT_MIN; NaN, infinities, -1, -0, 3e38 and 1e-45 as fp32
    static constexpr std::uint64_t word[] = {0xffffffff, 0,          1,          0x7fffffff, 0x80000000, 0x7fc00000,
                                             0x7f800000, 0xff800000, 0xbf800000, 0x7f61b1e6, 0x00000001};
    static constexpr std::uint64_t half[] = {0x7fc0, 0x7f80, 0xff80, 0xbf80, 0x8000, 0x7f7f, 0xffff, 0};  // bf16
    if (random.one_in(3)) return edge;
    return bytes == 8 ? random.of(wide) : bytes == 4 ? random.of(word) : random.of(half);
}

void put_special(Random& random, Bytes& part, std::int64_t n) {
    const std::size_t bytes = std::size_t{2} << random.below(3);
    if (part.size() < bytes) return;
    const auto room = static_cast<std::int64_t>(part.size() - bytes);
    const std::int64_t at = random.one_in(4) ? random.below(room + 1) : random.below(room / 2 + 1) * 2 / bytes * bytes;
    const std::uint64_t number = special(random, n, bytes);
    std::memcpy(part.data() + at, &number, bytes);
}

// Copies a range of `from` to a place in `part`.
void splice(Random& random, Bytes& part, const Bytes& from) {
    if (from.empty()) return;
    const auto size = static_cast<std::int64_t>(std::min(part.size(), from.size()));
    const std::int64_t length = 1 + random.below(std::min<std::int64_t>(size, 64));
    std::memmove(part.data() + random.below(static_cast<std::int64_t>(part.size()) - length + 1),
                 from.data() + random.below(static_cast<std::int64_t>(from.size()) - length + 1),
                 static_cast<std::size_t>(length));
}

void resize(Random& random, Bytes& part) {
    const auto size = static_cast<std::int64_t>(part.size());
    const std::int64_t by = random.one_in(2) ? 1 + random.below(8) : 4 * (1 + random.below(8));
    const bool grows = random.one_in(2);
    const std::int64_t cut = random.one_in(8) ? random.below(size + 1) : std::max<std::int64_t>(0, size - by);
    part.resize(static_cast<std::size_t>(grows ? size + by : cut), static_cast<std::uint8_t>(random()));
}

// Any one; or one near the beginning, where a payload says what the rest of it is.
std::int64_t place_of_byte(Random& random, std::int64_t size) {
    const std::int64_t head = random.one_in(4) ? std::int64_t{1} << random.below(7) : size;
    return random.below(std::min(head, size));
}

void mutate_part(Random& random, Bytes& part, const Bytes& other, std::int64_t n) {
    std::uint8_t& byte = part[place_of_byte(random, static_cast<std::int64_t>(part.size()))];
    switch (random.below(8)) {
        case 0:
            byte ^= static_cast<std::uint8_t>(1 << random.below(8));
            return;
        case 1:
            byte = static_cast<std::uint8_t>(random());
            return;
        case 2:
            byte = static_cast<std::uint8_t>(random.one_in(2) ? byte + 1 : byte - 1);
            return;
        case 3:
            byte = static_cast<std::uint8_t>(random.one_in(3) ? 0xff : random.one_in(2) ? 0 : random.below(32));
            return;
        case 4:
            return splice(random, part, part);
        case 5:
            return splice(random, part, other);
        default:
            return put_special(random, part, n);
    }
}

template <class T>
std::uint8_t* put(std::uint8_t* at, const T& value) {
    std::memcpy(at, &value, sizeof(T));
    return at + sizeof(T);
}

template <class T>
bool take(const Bytes& file, std::size_t& at, T& value) {
    if (file.size() - at < sizeof(T)) return false;
    std::memcpy(&value, file.data() + at, sizeof(T));
    at += sizeof(T);
    return true;
}

}  // namespace

void mutate(Random& random, Payload& payload, const Payload& other, bool resizes) {
    std::int64_t places = 1 + random.below(3);
    if (random.one_in(4)) places = 1 + random.below(8);
    for (; places > 0; --places) {
        if (payload.parts.empty()) return;
        const auto which = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(payload.parts.size())));
        Bytes& part = payload.parts[which];
        if (resizes && random.one_in(12)) {
            resize(random, part);
        } else if (!part.empty()) {
            mutate_part(random, part, which < other.parts.size() ? other.parts[which] : part, payload[kN]);
        }
    }
}

std::size_t write_payload(const char* decoder, const Payload& payload, std::uint8_t* file) {
    char name[kName] = {};
    std::strncpy(name, decoder, kName - 1);
    std::uint8_t* at = put(put(file, name), payload.settings);
    at = put(at, static_cast<std::uint64_t>(payload.parts.size()));
    for (const Bytes& part : payload.parts) {
        at = put(at, static_cast<std::uint64_t>(part.size()));
        if (part.empty()) continue;
        std::memcpy(at, part.data(), part.size());
        at += part.size();
    }
    return static_cast<std::size_t>(at - file);
}

bool read_payload(const Bytes& file, std::string& decoder, Payload& payload) {
    std::size_t at = 0;
    std::array<char, kName> name{};
    std::uint64_t parts = 0, bytes = 0;
    if (!take(file, at, name) || !take(file, at, payload.settings) || !take(file, at, parts)) return false;
    decoder.assign(name.data(), strnlen(name.data(), kName));
    payload.parts.clear();
    for (; parts > 0; --parts) {
        if (!take(file, at, bytes) || file.size() - at < bytes) return false;
        payload.parts.emplace_back(file.begin() + static_cast<std::ptrdiff_t>(at),
                                   file.begin() + static_cast<std::ptrdiff_t>(at + bytes));
        at += bytes;
    }
    return true;
}

}  // namespace fuzz
