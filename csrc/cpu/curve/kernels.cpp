#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/sample.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

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

// Of each vector the four lanes from this one on are looked at: every vector takes part, since neighbours are alike,
// and no pattern in memory has the hash's.
inline int first_chosen(std::int64_t i) {
    return static_cast<int>(scattered(static_cast<std::uint32_t>(i / kLanes)) >> 30) * 4;
}

template <class T>
void count_tail(const void* data, Place place, Key low, Count* counts) {
    constexpr std::int64_t kAtOnce = 64 * kLanes;
    const T* x = static_cast<const T*>(data);
    const Key first_of_tail = low >> kCurveShift;
    Count tail_of_bulk = 0;  // counted among the tail already
    // Of zeros there may be many, and incrementing one place again and again is slow.
    Count lowest_bin[kLanes] = {};
    for (std::int64_t start = place.begin; start < place.end; start += kAtOnce) {
        Key tail[kAtOnce + kLanes];
        std::int64_t found = 0;
        const std::int64_t end = start + kAtOnce < place.end ? start + kAtOnce : place.end;
        for (std::int64_t i = start; i < end; i += kLanes) {
            const auto v = load_until(x, i, end);
            found += Isa::append_keys(v, Isa::at_least(v, low), tail + found);
            Key keys[kLanes];
            Isa::store_keys(keys, v);
            const int first = first_chosen(i);
            for (int lane = first; lane < first + 4 && i + lane < end; ++lane) {
                const Key bin = keys[lane] >> kCurveShift;
                Count* const count = bin < first_of_tail ? counts + bin : &tail_of_bulk;
                ++*(bin == 0 ? lowest_bin + lane : count);
            }
        }
        for (std::int64_t j = 0; j < found; ++j) ++counts[tail[j] >> kCurveShift];
    }
    for (const Count zeros : lowest_bin) counts[0] += zeros;
}

}  // namespace

extern const CurveKernels curve_kernels = {
    {count_all<float>, count_all<Half>, count_all<BFloat16>},
    {count_tail<float>, count_tail<Half>, count_tail<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
