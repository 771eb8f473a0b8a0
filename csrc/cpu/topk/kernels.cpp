#include "kernels.hpp"

#include "../isa/accumulate.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

template <class T, bool kMany>
std::int64_t collect(const void* data, Place place, Key low, Candidates found) {
    const T* x = static_cast<const T*>(data);
    std::int64_t count = 0;
    for (std::int64_t i = place.begin; i < place.end; i += kLanes) {
        const auto v = load_until(x, i, place.end);
        const std::uint32_t mask = Isa::at_least(v, low);
        set_apart<kMany>(v, mask, i, found.values, found.indices, &count);
    }
    return count;
}

template <class G, class R, bool kMany>
std::int64_t accumulate_collect(const void* grad, const void* residual, void* out, Place place, bool past_caches,
                                Key low, Candidates found) {
    std::int64_t count = 0;
    accumulate(static_cast<const G*>(grad), static_cast<const R*>(residual), static_cast<R*>(out), place, past_caches,
               [&](std::int64_t i, Isa::Vec v) {
                   const std::uint32_t mask = Isa::at_least(v, low);
                   set_apart<kMany>(v, mask, i, found.values, found.indices, &count);
                   return Isa::without(v, mask);
               });
    return count;
}

std::int64_t keys_below(const float* values, std::int64_t count, Key high, Key* keys) {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; i += kLanes) {
        const auto v = load_until(values, i, count);
        found += Isa::append_keys(v, ~Isa::at_least(v, high) & valid(i, count), keys + found);
    }
    return found;
}

void count_keys(const Key* keys, std::int64_t count, Key low, int shift, Count* bins) {
    for (std::int64_t i = 0; i < count; ++i) {
        const Key bin = (keys[i] - low) >> shift;
        if (bin < kBins) ++bins[bin];  // all keys in the first digit, next to none in the others
    }
}

void rank(const float* values, std::int64_t count, Range range, std::int64_t* above, std::int64_t* equal) {
    std::int64_t more = 0, reached = 0;
    for (std::int64_t i = 0; i < count; i += kLanes) {
        const auto v = load_until(values, i, count);
        more += __builtin_popcount(Isa::at_least(v, range.first) & valid(i, count));
        reached += __builtin_popcount(Isa::at_least(v, range.last) & valid(i, count));
    }
    *above = more;
    *equal = reached - more;
}

// The lowest `ties` bits of a mask, and how many that are.
inline std::uint32_t lowest(std::uint32_t mask, std::int64_t* ties) {
    std::uint32_t taken = 0;
    for (; mask != 0 && *ties > 0; mask &= mask - 1, --*ties) taken |= mask & -mask;
    return taken;
}

template <class S, class R, bool kRestore>
void emit(Candidates from, std::int64_t count, Range range, std::int64_t ties, std::int32_t* indices,
          void* selected_data, void* out_data) {
    alignas(64) std::int32_t taken_indices[kChunk + kSlack];
    alignas(64) float taken[kChunk + kSlack];
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; i += kLanes) {
        const auto v = Isa::load(from.values + i);
        const std::uint32_t lanes = valid(i, count), above = Isa::at_least(v, range.first) & lanes;
        const std::uint32_t equal = Isa::at_least(v, range.last) & lanes & ~above;
        const std::uint32_t chosen = equal == 0 ? above : above | lowest(equal, &ties);
        found += Isa::append(v, from.indices + i, chosen, taken + found, taken_indices + found);
        if constexpr (kRestore) {
            for (std::uint32_t rest = lanes & ~chosen; rest != 0; rest &= rest - 1) {
                const std::int64_t j = i + __builtin_ctz(rest);
                static_cast<R*>(out_data)[from.indices[j]] = from_float<R>(from.values[j]);
            }
        }
    }
    S* selected = static_cast<S*>(selected_data);
    for (std::int64_t i = 0; i < found; ++i) indices[i] = taken_indices[i];
    for (std::int64_t i = 0; i < found; ++i) selected[i] = from_float<S>(taken[i]);
}

template <class T>
void count_digit(const void* data, Place place, int shift, int bits, Key prefix, Count* bins) {
    const T* x = static_cast<const T*>(data);
    const Key last = (Key{1} << bits) - 1;
    for (std::int64_t i = place.begin; i < place.end; ++i) {
        const Key key = Traits<float>::key(to_float(x[i]));
        if (key >> shift >> bits == prefix) ++bins[(key >> shift) & last];
    }
}

template <class T>
void rank_range(const void* data, Place place, Range range, std::int64_t* above, std::int64_t* equal) {
    const T* x = static_cast<const T*>(data);
    std::int64_t more = 0, reached = 0;
    for (std::int64_t i = place.begin; i < place.end; ++i) {
        const Key own = Traits<float>::key(to_float(x[i]));
        more += own >= range.first;
        reached += own >= range.last;
    }
    *above = more;
    *equal = reached - more;
}

// `limit` holds even if someone else writes to x meanwhile: there is no room for more.
template <class T, class S, bool kZero>
std::int64_t select(void* data, Place place, Range range, std::int64_t ties, std::int64_t limit, std::int32_t* indices,
                    void* selected_data) {
    T* x = static_cast<T*>(data);
    S* selected = static_cast<S*>(selected_data);
    std::int64_t count = 0;
    for (std::int64_t i = place.begin; i < place.end && count < limit; ++i) {
        const float value = to_float(x[i]);
        const Key own = Traits<float>::key(value);
        if (own < range.last || (own < range.first && ties-- <= 0)) continue;
        indices[count] = static_cast<std::int32_t>(i);
        selected[count++] = from_float<S>(value);
        if constexpr (kZero) x[i] = T{};
    }
    return count;
}

}  // namespace

// extern, as a constant is otherwise known to its own file alone.
extern const TopkKernels topk_kernels = {
    {{collect<float, false>, collect<Half, false>, collect<BFloat16, false>},
     {collect<float, true>, collect<Half, true>, collect<BFloat16, true>}},
    {{{accumulate_collect<float, float, false>, accumulate_collect<float, float, false>},
      {accumulate_collect<Half, float, false>, accumulate_collect<Half, Half, false>},
      {accumulate_collect<BFloat16, float, false>, accumulate_collect<BFloat16, BFloat16, false>}},
     {{accumulate_collect<float, float, true>, accumulate_collect<float, float, true>},
      {accumulate_collect<Half, float, true>, accumulate_collect<Half, Half, true>},
      {accumulate_collect<BFloat16, float, true>, accumulate_collect<BFloat16, BFloat16, true>}}},
    keys_below,
    count_keys,
    rank,
    {emit<float, float, false>, emit<Half, float, false>, emit<BFloat16, float, false>},
    {emit<float, float, true>, emit<float, Half, true>, emit<float, BFloat16, true>},
    {count_digit<float>, count_digit<Half>, count_digit<BFloat16>},
    {rank_range<float>, rank_range<Half>, rank_range<BFloat16>},
    {select<float, float, false>, select<Half, Half, false>, select<BFloat16, BFloat16, false>},
    {select<float, float, true>, select<Half, float, true>, select<BFloat16, float, true>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
