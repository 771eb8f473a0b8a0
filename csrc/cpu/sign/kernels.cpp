#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/sign.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

static_assert(kSumLanes % kLanes == 0 && kLanes == 16, "a vector has lanes of its own, and two bytes of bits");

Isa::Vec without_sent(Isa::Vec v, Isa::Vec plus, Isa::Vec minus) {
    return Isa::subtract(v, Isa::choose(Isa::below_zero(v), plus, minus));
}

template <class G, class R, class Restore>
double correct_from(const void* grad, const void* kept, void* out, Place place, bool past_caches, std::uint8_t* bits,
                    Restore restore) {
    double lanes[kSumLanes] = {};
    accumulate(static_cast<const G*>(grad), static_cast<const R*>(kept), static_cast<R*>(out), place, past_caches,
               restore, [&](std::int64_t i, Isa::Vec v) {
                   Isa::add_magnitudes(v, lanes + i % kSumLanes);
                   std::uint32_t positive = ~Isa::below_zero(v);
                   if (i + kLanes > place.end) positive &= (1u << (place.end - i)) - 1;
                   bits[i / 8] = static_cast<std::uint8_t>(positive);
                   if (i + 8 < place.end) bits[i / 8 + 1] = static_cast<std::uint8_t>(positive >> 8);
                   return v;
               });
    return add_lanes(lanes, kSumLanes);
}

template <class G, class R>
double correct(const void* grad, const void* residual, void* out, Place place, bool past_caches, std::uint8_t* bits) {
    return correct_from<G, R>(grad, residual, out, place, past_caches, bits, [](Isa::Vec v) { return v; });
}

template <class G, class R>
double correct_kept(const void* grad, const void* kept, void* out, Place place, bool past_caches, std::uint8_t* bits,
                    float kept_scale) {
    const auto plus = Isa::all(kept_scale), minus = Isa::all(-kept_scale);
    return correct_from<G, R>(grad, kept, out, place, past_caches, bits,
                              [=](Isa::Vec v) { return Isa::template rounded<R>(without_sent(v, plus, minus)); });
}

template <class T, class Change>
void change(T* x, Place place, Change new_value) {
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    for (std::int64_t i = place.begin; i < last; i += kLanes) Isa::store(x + i, new_value(i, Isa::load(x + i)));
    if (last == place.end) return;
    T some[kLanes];
    Isa::store(some, new_value(last, load_until(x, last, place.end)));
    for (std::int64_t i = last; i < place.end; ++i) x[i] = some[i - last];
}

template <class T>
void subtract_sent(void* x, Place place, float scale) {
    const auto plus = Isa::all(scale), minus = Isa::all(-scale);
    change(static_cast<T*>(x), place, [=](std::int64_t, Isa::Vec v) { return without_sent(v, plus, minus); });
}

template <class T>
void add(const std::uint8_t* bits, void* out, Place place, float step) {
    const auto plus = Isa::all(step), minus = Isa::all(-step);
    change(static_cast<T*>(out), place, [=](std::int64_t i, Isa::Vec v) {
        std::uint32_t positive = bits[i / 8];
        if (i + 8 < place.end) positive |= static_cast<std::uint32_t>(bits[i / 8 + 1]) << 8;
        return Isa::add(v, Isa::choose(positive, minus, plus));
    });
}

}  // namespace

extern const SignKernels sign_kernels = {
    {
        {correct<float, float>, correct<float, float>},
        {correct<Half, float>, correct<Half, Half>},
        {correct<BFloat16, float>, correct<BFloat16, BFloat16>},
    },
    {
        {correct_kept<float, float>, correct_kept<float, float>},
        {correct_kept<Half, float>, correct_kept<Half, Half>},
        {correct_kept<BFloat16, float>, correct_kept<BFloat16, BFloat16>},
    },
    {subtract_sent<float>, subtract_sent<Half>, subtract_sent<BFloat16>},
    {add<float>, add<Half>, add<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
