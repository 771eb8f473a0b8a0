// What making and decoding payloads of several kinds have in common.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "decoders.hpp"
#include "hvd_compress/numeric.hpp"
#include "hvd_compress/types.hpp"

namespace fuzz {

using hvd_compress::Array;
using hvd_compress::ConstArray;
using hvd_compress::DType;
using hvd_compress::Status;

constexpr float kWeights[] = {1.0f, 0.25f, -3.0f};

inline std::int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }
inline DType dtype_of(const Payload& payload) { return static_cast<DType>(payload[kDType]); }
inline DType values_of(const Payload& payload) { return static_cast<DType>(payload[kValues]); }
inline float weight_of(const Payload& payload) { return kWeights[payload[kN] % 3]; }

inline void expect(bool holds, const char* what) {
    if (!holds) fail(what);
}

// Settings that all have; `large` is the most elements, which few payloads have.
void common_settings(Random& random, Payload& payload, std::int64_t large);
void use_level(std::int64_t level);  // of vector instructions; clipped to what the machine has

// Gradients as they are, and now and then what is not finite or nearly 0.
std::vector<float> gradient(Random& random, std::int64_t n);

template <class T>
Bytes bytes_of(const T* data, std::int64_t count) {
    const auto* const from = reinterpret_cast<const std::uint8_t*>(data);
    return Bytes(from, from + static_cast<std::size_t>(count) * sizeof(T));
}

inline float value_at(const void* data, DType dtype, std::int64_t i) {
    using namespace hvd_compress;
    if (dtype == DType::kFloat32) return static_cast<const float*>(data)[i];
    if (dtype == DType::kFloat16) return to_float(static_cast<const Half*>(data)[i]);
    return to_float(static_cast<const BFloat16*>(data)[i]);
}

// Whether two tensors are equal to the bit, but for what a NaN holds.
bool same(const void* one, const void* other, DType dtype, std::int64_t n);
bool all_finite(const void* data, DType dtype, std::int64_t n);

// Calls run(out) with memory for n elements; where the payload says so, again with the portable loops, and expects the
// same. Returns the first `out`.
template <class Run>
const void* decode_dense(const Payload& payload, Memory& memory, DType dtype, const Run& run) {
    const std::int64_t n = payload[kN], size = size_of(dtype);
    void* const out = memory.output(n * size, payload[kShift] * size);
    use_level(payload[kLevel]);
    run(out);
    if (payload[kCompare] != 0) {
        void* const again = memory.output(n * size);
        use_level(0);
        run(again);
        expect(same(out, again, dtype, n), "the levels of vector instructions disagree");
    }
    return out;
}

}  // namespace fuzz
