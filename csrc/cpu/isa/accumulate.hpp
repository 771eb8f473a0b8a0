// The loop that all kernels with error feedback begin with.
#pragma once

#include "isa.hpp"
#include "types.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {

// Writes out = filter(i, corrected) for the elements of a place, where corrected = residual + grad, rounded to R.
//
// filter takes and returns sixteen elements from the i-th on; after the last element of the place they are 0. With
// `past_caches` every vector must be aligned to a cache line, and R be float.
template <class G, class R, class Filter>
inline void accumulate(const G* grad, const R* residual, R* out, Place place, bool past_caches, Filter filter) {
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    const auto vector = [&](std::int64_t i) {
        return filter(i, Isa::template rounded<R>(Isa::add(Isa::load(residual + i), Isa::load(grad + i))));
    };
    if constexpr (sizeof(R) == sizeof(float)) {
        if (past_caches) {
            for (std::int64_t i = place.begin; i < last; i += kLanes) Isa::stream(out + i, vector(i));
            Isa::fence();
        } else {
            for (std::int64_t i = place.begin; i < last; i += kLanes) Isa::store(out + i, vector(i));
        }
    } else {
        for (std::int64_t i = place.begin; i < last; i += kLanes) Isa::store(out + i, vector(i));
    }
    if (last == place.end) return;
    G some_grad[kLanes] = {};
    R some_residual[kLanes] = {}, some_out[kLanes];
    for (std::int64_t i = last; i < place.end; ++i) {
        some_grad[i - last] = grad[i];
        some_residual[i - last] = residual[i];
    }
    const auto v = Isa::template rounded<R>(Isa::add(Isa::load(some_residual), Isa::load(some_grad)));
    Isa::store(some_out, filter(last, v));
    for (std::int64_t i = last; i < place.end; ++i) out[i] = some_out[i - last];
}

// The lanes of a vector from the i-th element on that lie before `end`.
inline std::uint32_t valid(std::int64_t i, std::int64_t end) {
    return i + kLanes <= end ? 0xffffu : (1u << (end - i)) - 1;
}

// Sixteen elements from the i-th on, zeros after `end`.
template <class T>
inline Isa::Vec load_until(const T* x, std::int64_t i, std::int64_t end) {
    if (i + kLanes <= end) return Isa::load(x + i);
    T some[kLanes] = {};
    for (std::int64_t j = i; j < end; ++j) some[j - i] = x[j];
    return Isa::load(some);
}

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
