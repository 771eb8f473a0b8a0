#pragma once

#include "hvd_compress/numeric.hpp"

namespace hvd_compress::cpu {

template <class T>
void gather_kernel(const T* x, const std::int32_t* indices, std::int64_t count, T* values) {
    for (std::int64_t j = 0; j < count; ++j) values[j] = x[indices[j]];
}

template <class T>
void take_kernel(T* x, const std::int32_t* indices, std::int64_t count, float* values) {
    for (std::int64_t j = 0; j < count; ++j) {
        values[j] = to_float(x[indices[j]]);
        x[indices[j]] = T{};
    }
}

template <class V, class T>
void scatter_add_kernel(const std::int32_t* indices, const V* values, std::int64_t count, T* out, float scale) {
    for (std::int64_t j = 0; j < count; ++j) {
        T& target = out[indices[j]];
        target = from_float<T>(to_float(target) + scale * to_float(values[j]));
    }
}

template <class V, class T>
void scatter_set_kernel(const std::int32_t* indices, const V* values, std::int64_t count, T* out, float scale) {
    for (std::int64_t j = 0; j < count; ++j) out[indices[j]] = from_float<T>(scale * to_float(values[j]));
}

}  // namespace hvd_compress::cpu
