#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/curve.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

static_assert(kCurveGroup == 4 * kLanes);

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

// Which vector of the group is looked at: no pattern in memory has the hash's.
inline int chosen(std::int64_t group) {
    return static_cast<int>(static_cast<std::uint32_t>(group) * 0x9e3779b9u >> 30);
}

template <class T>
void count_tail(const void* data, Place place, Key low, Count* counts) {
    constexpr std::int64_t kGroupsAtOnce = 16;
    const T* x = static_cast<const T*>(data);
    const Key first_of_tail = low >> kCurveShift;
    Count tail_of_bulk = 0;  // counted among the tail already
    // Of zeros there may be many, and incrementing one place again and again is slow.
    Count lowest_bin[kLanes] = {};
    std::int64_t i = place.begin;
    while (i + kCurveGroup <= place.end) {
        Key tail[kGroupsAtOnce * kCurveGroup + kLanes];
        std::int64_t found = 0;
        for (std::int64_t group = 0; group < kGroupsAtOnce && i + kCurveGroup <= place.end; ++group, i += kCurveGroup) {
            for (int vector = 0; vector < 4; ++vector) {
                const auto v = Isa::load(x + i + vector * kLanes);
                found += Isa::append_keys(v, Isa::at_least(v, low), tail + found);
            }
            Key keys[kLanes];
            Isa::store_keys(keys, Isa::load(x + i + chosen(i / kCurveGroup) * kLanes));
            for (int lane = 0; lane < kLanes; ++lane) {
                const Key bin = keys[lane] >> kCurveShift;
                Count* const count = bin < first_of_tail ? counts + bin : &tail_of_bulk;
                ++*(bin == 0 ? lowest_bin + lane : count);
            }
        }
        for (std::int64_t j = 0; j < found; ++j) ++counts[tail[j] >> kCurveShift];
    }
    for (const Count zeros : lowest_bin) counts[0] += zeros;
    for (; i < place.end; ++i) {
        const Key key = to_bits(to_float(x[i])) & 0x7fffffffu;
        if (key >= low) ++counts[key >> kCurveShift];
    }
}

}  // namespace

extern const CurveKernels curve_kernels = {
    {count_all<float>, count_all<Half>, count_all<BFloat16>},
    {count_tail<float>, count_tail<Half>, count_tail<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
