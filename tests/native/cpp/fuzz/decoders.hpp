// The decoders of csrc/cpu: what turns received bytes into tensors. Each is called with what Python lets through to it.
#pragma once

#include <vector>

#include "memory.hpp"
#include "payload.hpp"

namespace fuzz {

struct Decoder {
    const char* name;  // as in csrc/bindings/
    bool resizes;      // whether a payload may have any length
    // Makes what an honest rank sends.
    void (*make)(Random& random, Payload& payload);
    // Decodes; returns whether it was accepted. Calls fail() where the result is neither an error nor a valid tensor.
    bool (*decode)(const Payload& payload, Memory& memory);
    bool planted = false;  // a defect that must be found
};

std::vector<Decoder> dense_decoders();    // of all elements: signs, levels, blocks
std::vector<Decoder> sparse_decoders();   // of indices
std::vector<Decoder> planted_decoders();  // that are defective

}  // namespace fuzz
