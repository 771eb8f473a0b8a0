// How the whole numbers of a group lie in memory: written, and read to be added.
#pragma once

#include <cstdint>
#include <cstring>

#include "../isa/isa.hpp"
#include "hvd_compress/blocks.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

constexpr int kVectors = kBlockGroup / kLanes;  // of a group
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lowest bytes of a word come first");

// The number of each lane of a group, in digits.
template <int most>
inline Isa::Words number_of(const Isa::Words (&q)[kVectors]) {
    const auto digit = [&](int part) { return Isa::sum(q[part], Isa::all_words(most)); };
    Isa::Words number = digit(kVectors - 1);
    for (int part = kVectors - 2; part >= 0; --part) {
        if constexpr (digit_base(most) == 8) {
            number = Isa::sum(Isa::shift_left<3>(number), digit(part));
        } else {
            number = Isa::sum(Isa::sum(Isa::shift_left<2>(number), number), digit(part));
        }
    }
    return number;
}

// The lowest `bits` of each of 8 bytes, close together; and back.
template <int bits>
inline std::uint64_t gather_bits(std::uint64_t bytes) {
    bytes = (bytes | bytes >> (8 - bits)) & (bits == 4 ? 0x00ff00ff00ff00ffu : 0x000f000f000f000fu);
    bytes = (bytes | bytes >> (16 - 2 * bits)) & (bits == 4 ? 0x0000ffff0000ffffu : 0x000000ff000000ffu);
    return (bytes | bytes >> (32 - 4 * bits)) & (bits == 4 ? 0xffffffffu : 0xffffu);
}
template <int bits>
inline std::uint64_t spread_bits(std::uint64_t close) {
    close = (close | close << (32 - 4 * bits)) & (bits == 4 ? 0x0000ffff0000ffffu : 0x000000ff000000ffu);
    close = (close | close << (16 - 2 * bits)) & (bits == 4 ? 0x00ff00ff00ff00ffu : 0x000f000f000f000fu);
    return (close | close << (8 - bits)) & (bits == 4 ? 0x0f0f0f0f0f0f0f0fu : 0x0303030303030303u);
}

template <int most>
inline void pack_digits(const Isa::Words (&q)[kVectors], std::uint8_t* codes) {
    constexpr int bits = bits_above_byte(most);
    const Isa::Words number = number_of<most>(q);
    std::uint64_t above[2];
    Isa::store_bytes(codes, number);
    Isa::store_bytes(reinterpret_cast<std::uint8_t*>(above), Isa::shift_right<8>(number));
    const std::uint64_t close = gather_bits<bits>(above[0]) | gather_bits<bits>(above[1]) << 8 * bits;
    std::memcpy(codes + kLanes, &close, 2 * bits);
}

template <int most>
inline void pack(const Isa::Words (&q)[kVectors], std::uint8_t* codes) {
    if constexpr (has_digits(most)) {
        pack_digits<most>(q, codes);
    } else if constexpr (most == 127) {
        Isa::store_bytes(codes, q[0], q[1]);
        Isa::store_bytes(codes + 2 * kLanes, q[2], q[3]);
    } else if constexpr (most == 7) {
        const Isa::Words low = Isa::all_words(15);
        Isa::store_bytes(codes, Isa::bit_or(Isa::bit_and(q[0], low), Isa::shift_left<4>(q[2])),
                         Isa::bit_or(Isa::bit_and(q[1], low), Isa::shift_left<4>(q[3])));
    } else {
        const Isa::Words low = Isa::all_words(3);
        const Isa::Words first = Isa::bit_or(Isa::bit_and(q[0], low), Isa::shift_left<2>(Isa::bit_and(q[1], low)));
        const Isa::Words second = Isa::bit_or(Isa::bit_and(q[2], low), Isa::shift_left<2>(q[3]));
        Isa::store_bytes(codes, Isa::bit_or(first, Isa::shift_left<4>(second)));
    }
}

// sum += q * u, where q are the bits of each word from `bit` on.
template <int bits, int bit>
inline void add_codes(Isa::Words bytes, Isa::Vec unit, Isa::Vec& sum) {
    if constexpr (bit + bits < 8) bytes = Isa::shift_left<32 - bits - bit>(bytes);
    if constexpr (bits < 8) bytes = Isa::shift_right < bit + bits<8 ? 32 - bits : bit>(bytes);
    sum = Isa::add(sum, Isa::multiply(Isa::to_floats(bytes), unit));
}

// sum += q * u, where q are in digits.
template <int most>
inline void add_digits(const std::uint8_t* codes, Isa::Vec unit, Isa::Vec (&sum)[kVectors]) {
    constexpr int bits = bits_above_byte(most);
    std::uint64_t close = 0;
    std::memcpy(&close, codes + kLanes, 2 * bits);
    const std::uint64_t above[2] = {spread_bits<bits>(close & ((std::uint64_t{1} << 8 * bits) - 1)),
                                    spread_bits<bits>(close >> 8 * bits)};
    Isa::Words number = Isa::bit_or(Isa::bit_and(Isa::load_bytes(codes), Isa::all_words(0xff)),
                                    Isa::shift_left<8>(Isa::load_bytes(reinterpret_cast<const std::uint8_t*>(above))));
    const auto raised = Isa::all(static_cast<float>(most));
    if constexpr (digit_base(most) == 8) {
        for (int part = 0; part < kVectors; ++part) {
            const auto q = Isa::subtract(Isa::to_floats(Isa::bit_and(number, Isa::all_words(7))), raised);
            sum[part] = Isa::add(sum[part], Isa::multiply(q, unit));
            number = Isa::shift_right<3>(number);
        }
    } else {
        auto left = Isa::to_floats(number);
        for (int part = 0; part < kVectors; ++part) {
            // Of numbers below 1024 what is cut is the quotient, as fp32's 1/5 is above it by less than 2^-26.
            const auto quotient = Isa::to_floats(Isa::truncated(Isa::multiply(left, Isa::all(0.2f))));
            const auto digit = Isa::subtract(left, Isa::multiply(quotient, Isa::all(5.0f)));
            sum[part] = Isa::add(sum[part], Isa::multiply(Isa::subtract(digit, raised), unit));
            left = quotient;
        }
    }
}

}  // namespace
}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
