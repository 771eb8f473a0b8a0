// A payload as it arrives: bytes that another rank chose, and what this rank knows without it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fuzz {

using Bytes = std::vector<std::uint8_t>;

// SplitMix64 (Steele et al. 2014).
struct Random {
    std::uint64_t state;

    std::uint64_t operator()() {
        std::uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }
    std::int64_t below(std::int64_t n) { return n > 0 ? static_cast<std::int64_t>((*this)() % n) : 0; }
    bool one_in(std::int64_t n) { return below(n) == 0; }
    template <class T, std::size_t count>
    T of(const T (&values)[count]) {
        return values[below(count)];
    }
};

// What the receiver knows, and Python has checked; never mutated. kShift: of all addresses, in elements. kCompare:
// whether the result is also computed in another way.
enum Setting : int { kN, kDType, kValues, kMost, kBlock, kFit, kCount, kLevel, kShift, kCompare, kSettings };

struct Payload {
    std::array<std::int64_t, kSettings> settings{};
    std::vector<Bytes> parts;

    std::int64_t& operator[](Setting setting) { return settings[setting]; }
    std::int64_t operator[](Setting setting) const { return settings[setting]; }
};

// Mutates one to eight places. Lengths change where `resizes`; elsewhere Python refuses any other length.
void mutate(Random& random, Payload& payload, const Payload& other, bool resizes);

// Files of payloads.
constexpr std::size_t kMaxFile = std::size_t{1} << 20;
std::size_t write_payload(const char* decoder, const Payload& payload, std::uint8_t* file);  // returns its bytes
bool read_payload(const Bytes& file, std::string& decoder, Payload& payload);

}  // namespace fuzz
