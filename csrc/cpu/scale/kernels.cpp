#include "kernels.hpp"

#include "../isa/accumulate.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

template <class T>
bool scale_place(void* data, float factor, Place place) {
    T* x = static_cast<T*>(data);
    const Isa::Vec factors = Isa::all(factor);
    std::uint32_t infinite = 0;
    const auto scaled = [&](Isa::Vec v, std::uint32_t mask) {
        const Isa::Vec product = Isa::template rounded<T>(Isa::multiply(v, factors));
        infinite |= Isa::at_least(product, Traits<float>::kInfinityKey) & mask;
        return product;
    };
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    for (std::int64_t i = place.begin; i < last; i += kLanes) Isa::store(x + i, scaled(Isa::load(x + i), 0xffffu));
    if (last < place.end) {
        T some[kLanes];
        Isa::store(some, scaled(load_until(x, last, place.end), valid(last, place.end)));
        for (std::int64_t i = last; i < place.end; ++i) x[i] = some[i - last];
    }
    return infinite == 0;
}

}  // namespace

extern const ScaleKernels scale_kernels = {{scale_place<float>, scale_place<Half>, scale_place<BFloat16>}};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
