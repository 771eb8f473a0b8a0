#include "kernels.hpp"

#include "../isa/accumulate.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

template <class T>
std::int64_t select(const void* data, Place place, std::uint32_t low, std::int64_t limit, std::int32_t* indices,
                    float* values) {
    const T* x = static_cast<const T*>(data);
    std::int64_t found = 0;
    for (std::int64_t i = place.begin; i < place.end && found < limit; i += kLanes) {
        const auto v = load_until(x, i, place.end);
        const std::uint32_t mask = Isa::at_least(v, low) & valid(i, place.end);
        found += Isa::append(v, mask, static_cast<std::int32_t>(i), values + found, indices + found);
    }
    return found < limit ? found : limit;
}

// Sets apart the lanes of v that reach `low`.
struct Finder {
    std::uint32_t low;
    std::int32_t* indices;
    float* values;
    std::int64_t count = 0;

    std::uint32_t operator()(Isa::Vec v, std::int64_t i, std::int64_t end) {
        const std::uint32_t mask = Isa::at_least(v, low) & valid(i, end);
        set_apart<false>(v, mask, i, values, indices, &count);
        return mask;
    }
};

void store_until(float* x, Isa::Vec v, std::int64_t i, std::int64_t end) {
    float some[kLanes];
    Isa::store(some, v);
    for (std::int64_t j = i; j < end; ++j) x[j] = some[j - i];
}

// Never past the caches: two streams that are written so took a third longer than lines that are read first.
template <class G>
void accumulate_momentum(const G* grad, const float* residual, Momentum momentum, float* out, Place place,
                         Finder* find) {
    const auto factor = Isa::all(momentum.factor);
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    for (std::int64_t i = place.begin; i < last; i += kLanes) {
        const auto own = Isa::add(Isa::multiply(factor, Isa::load(momentum.velocity + i)), Isa::load(grad + i));
        const auto v = Isa::add(Isa::load(residual + i), own);
        const std::uint32_t mask = (*find)(v, i, place.end);
        Isa::store(momentum.out + i, Isa::without(own, mask));
        Isa::store(out + i, Isa::without(v, mask));
    }
    if (last == place.end) return;
    const auto own = Isa::add(Isa::multiply(factor, load_until(momentum.velocity, last, place.end)),
                              load_until(grad, last, place.end));
    const auto v = Isa::add(load_until(residual, last, place.end), own);
    const std::uint32_t mask = (*find)(v, last, place.end);
    store_until(momentum.out, Isa::without(own, mask), last, place.end);
    store_until(out, Isa::without(v, mask), last, place.end);
}

template <class G>
std::int64_t accumulate_select(const void* data, const float* residual, Momentum momentum, float* out, Place place,
                               bool past_caches, std::uint32_t low, std::int32_t* indices, float* values) {
    const G* grad = static_cast<const G*>(data);
    Finder find{low, indices, values};
    if (momentum.velocity != nullptr) {
        accumulate_momentum(grad, residual, momentum, out, place, &find);
    } else {
        accumulate(grad, residual, out, place, past_caches,
                   [&](std::int64_t i, Isa::Vec v) { return Isa::without(v, find(v, i, place.end)); });
    }
    return find.count;
}

}  // namespace

extern const ThresholdKernels threshold_kernels = {
    {select<float>, select<Half>, select<BFloat16>},
    {accumulate_select<float>, accumulate_select<Half>, accumulate_select<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
