// Decoders that are defective: the fuzzer must find what AddressSanitizer sees, and what it does not.
#include "common.hpp"

namespace fuzz {
namespace {

void make(Random& random, Payload& payload) {
    common_settings(random, payload, 1000);
    payload[kN] = 1 + payload[kN];
    payload.parts = {Bytes(static_cast<std::size_t>(payload[kN]), 1)};
}

// Trusts the first byte, as if it said how many are to be read after it.
bool reads_after(const Payload& payload, Memory& memory) {
    const volatile std::uint8_t* const data = memory.input(payload.parts[0], payload[kShift]);
    const std::int64_t last = data[0] == 0xff ? payload[kN] : 0;
    return data[last] != 0;
}

__attribute__((no_sanitize("address"), noinline)) void store(volatile std::uint8_t* to) { *to = 0; }

bool writes_after(const Payload& payload, Memory& memory) {
    const std::uint8_t* const data = memory.input(payload.parts[0], payload[kShift]);
    auto* const out = static_cast<std::uint8_t*>(memory.output(payload[kN], payload[kShift]));
    store(out + (data[0] == 0xff ? payload[kN] : 0));
    return true;
}

}  // namespace

std::vector<Decoder> planted_decoders() {
    return {
        {"planted_read", false, &make, &reads_after, true},
        {"planted_write", false, &make, &writes_after, true},
    };
}

}  // namespace fuzz
