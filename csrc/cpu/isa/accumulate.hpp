// The loop that all kernels with error feedback begin with.
#pragma once

#include "isa.hpp"
#include "types.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {

// Writes out = filter(i, corrected) for the elements of a place, where corrected = residual + grad, rounded to R.
//
// filter takes and returns sixteen elements from the i-th on; after the last element of the place they are 0. With
// `past_caches` every vector must be aligned to a cache line, and R be float.
//
// The residual is restore(v), sixteen elements that are rounded to R, of what lies at `kept`.
template <class G, class R, class Restore, class Filter>
inline void accumulate(const G* grad, const R* kept, R* out, Place place, bool past_caches, Restore restore,
                       Filter filter) {
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    const auto vector = [&](std::int64_t i) {
        return filter(i, Isa::template rounded<R>(Isa::add(restore(Isa::load(kept + i)), Isa::load(grad + i))));
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
    R some_kept[kLanes] = {}, some_out[kLanes];
    for (std::int64_t i = last; i < place.end; ++i) {
        some_grad[i - last] = grad[i];
        some_kept[i - last] = kept[i];
    }
    const auto v = Isa::template rounded<R>(Isa::add(restore(Isa::load(some_kept)), Isa::load(some_grad)));
    Isa::store(some_out, v);
    for (std::int64_t i = place.end; i < last + kLanes; ++i) some_out[i - last] = R{};  // restored may not be 0
    Isa::store(some_out, filter(last, Isa::load(some_out)));
    for (std::int64_t i = last; i < place.end; ++i) out[i] = some_out[i - last];
}

// The same where the residual itself is kept.
template <class G, class R, class Filter>
inline void accumulate(const G* grad, const R* residual, R* out, Place place, bool past_caches, Filter filter) {
    const auto as_it_is = [](Isa::Vec v) { return v; };
    accumulate(grad, residual, out, place, past_caches, as_it_is, filter);
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

// Appends the lanes of the mask to what has been found. Of many vectors with nothing in them it pays to skip them; but
// the more even the chances are, the more often a branch is predicted wrongly.
template <bool kMany>
inline void set_apart(Isa::Vec v, std::uint32_t mask, std::int64_t i, float* values, std::int32_t* indices,
                      std::int64_t* count) {
    if (!kMany && mask == 0) return;
    *count += Isa::append(v, mask, static_cast<std::int32_t>(i), values + *count, indices + *count);
}

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
