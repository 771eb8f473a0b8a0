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

}  // namespace

extern const ThresholdKernels threshold_kernels = {{select<float>, select<Half>, select<BFloat16>}};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
