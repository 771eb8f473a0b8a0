#include "kernels.hpp"

#include "../isa/accumulate.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

template <class G, class R>
bool accumulate_place(const void* grad, const void* residual, void* out, Place place, bool past_caches) {
    std::uint32_t infinite = 0;
    accumulate(static_cast<const G*>(grad), static_cast<const R*>(residual), static_cast<R*>(out), place, past_caches,
               [&](std::int64_t, Isa::Vec v) {
                   infinite |= Isa::at_least(v, Traits<float>::kInfinityKey);
                   return v;
               });
    return infinite == 0;
}

}  // namespace

extern const FeedbackKernels feedback_kernels = {
    {
        {accumulate_place<float, float>, accumulate_place<float, float>},
        {accumulate_place<Half, float>, accumulate_place<Half, Half>},
        {accumulate_place<BFloat16, float>, accumulate_place<BFloat16, BFloat16>},
    },
    Isa::kLevel,
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
