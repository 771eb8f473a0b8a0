#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/sample.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

static_assert(kCurveGroup == 4 * kLanes && kLanes == 16);

template <class T>
void count_all(const void* data, Place place, Count* counts) {
    const T* x = static_cast<const T*>(data);
    const std::int64_t last = place.begin + (place.end - place.begin) / kLanes * kLanes;
    for (std::int64_t i = place.begin; i < last; i += kLanes) {
        Key keys[kLanes];
        Isa::store_keys(keys, Isa::load(x + i));
        for (int lane = 0; lane < kLanes; ++lane) ++counts[keys[lane] >> kCurveShift];
    }
    for (std::int64_t i = last; i < place.end; ++i) ++counts[(to_bits(to_float(x[i])) & 0x7fffffffu) >> kCurveShift];
}

// The lanes that are taken from the second, third and fourth vector of a group, by its turn.
constexpr std::uint32_t kTaken[4][3] = {{0xfu << 4, 0xfu << 8, 0xfu << 12},
                                        {0xfu << 8, 0xfu << 12, 0xfu},
                                        {0xfu << 12, 0xfu, 0xfu << 4},
                                        {0xfu, 0xfu << 4, 0xfu << 8}};

template <class T>
void count_tail(const void* data, Place place, Key low, Count* bulk, Count* tail) {
    constexpr std::int64_t kGroupsAtOnce = 16;
    const T* x = static_cast<const T*>(data);
    // Of zeros there may be many, and incrementing one place again and again is slow: they are counted by themselves,
    // and some place without a meaning takes the increment. As are those of the tail that are chosen.
    float nowhere[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
        nowhere[lane] = from_bits(0x7fffffffu - (static_cast<Key>(lane) << kCurveShift));
    const auto meaningless = Isa::load(nowhere);
    Count zeros = 0;
    std::int64_t i = place.begin;
    while (i + kCurveGroup <= place.end) {
        Key found[kGroupsAtOnce * kCurveGroup + kLanes];
        std::int64_t number = 0;
        for (std::int64_t group = 0; group < kGroupsAtOnce && i + kCurveGroup <= place.end; ++group, i += kCurveGroup) {
            const Isa::Vec vectors[4] = {Isa::load(x + i), Isa::load(x + i + kLanes), Isa::load(x + i + 2 * kLanes),
                                         Isa::load(x + i + 3 * kLanes)};
            const std::uint32_t* taken = kTaken[curve_turn(i / kCurveGroup)];
            auto chosen = vectors[0];
            for (int v = 0; v < 4; ++v) {
                number += Isa::append_keys(vectors[v], Isa::at_least(vectors[v], low), found + number);
                if (v > 0) chosen = Isa::choose(taken[v - 1], chosen, vectors[v]);
            }
            const std::uint32_t smallest = ~Isa::at_least(chosen, Key{1} << kCurveShift) & 0xffffu;
            zeros += static_cast<Count>(__builtin_popcount(smallest));
            Key keys[kLanes];
            Isa::store_keys(keys, Isa::choose(smallest, chosen, meaningless));
            for (int lane = 0; lane < kLanes; ++lane) ++bulk[keys[lane] >> kCurveShift];
        }
        for (std::int64_t j = 0; j < number; ++j) ++tail[found[j] >> kCurveShift];
    }
    for (; i < place.end; ++i) {
        const Key key = to_bits(to_float(x[i])) & 0x7fffffffu;
        if (key >= low) ++tail[key >> kCurveShift];
        if (is_chosen(i)) ++bulk[key >> kCurveShift];
    }
    bulk[0] += zeros;
}

}  // namespace

extern const CurveKernels curve_kernels = {
    {count_all<float>, count_all<Half>, count_all<BFloat16>},
    {count_tail<float>, count_tail<Half>, count_tail<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
