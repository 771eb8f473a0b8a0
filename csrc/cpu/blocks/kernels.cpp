#include "kernels.hpp"

#include <type_traits>

#include "../isa/accumulate.hpp"
#include "../quantize/philox.hpp"
#include "packing.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

constexpr std::uint32_t kInfinity = Traits<float>::kInfinityKey;

// How the elements of a block become whole numbers.
struct Unit {
    float unit, inverse;
    std::uint32_t above;  // kTernary: keys from here on are sent
    bool sends;
};

// `unit` as it is stored, and how to quantise by it.
inline Unit stored(float unit, bool up, std::uint32_t above, std::uint16_t* place) {
    const BlockUnit by = block_unit(unit, up);
    *place = by.stored;
    return {by.unit, by.inverse, above, by.sends};
}

// The unit of a block of `numel` elements, filled up with zeros to whole vectors.
inline Unit unit_of_largest(const float* v, std::int64_t vectors, int most, bool up, std::uint16_t* place) {
    Isa::Words largest = Isa::all_words(0);
    for (std::int64_t i = 0; i < vectors; ++i) largest = Isa::larger(largest, Isa::keys(Isa::load(v + i * kLanes)));
    return stored(from_bits(Isa::largest(largest)) / static_cast<float>(most), up, 0, place);
}

inline Unit ternary_unit(const float* v, std::int64_t vectors, std::int64_t numel, std::uint16_t* place) {
    Isa::Vec sum = Isa::zero();
    for (std::int64_t i = 0; i < vectors; ++i) sum = Isa::add(sum, Isa::absolute(Isa::load(v + i * kLanes)));
    const float threshold = 0.7f * (Isa::sum_of_lanes(sum) / static_cast<float>(numel));
    const std::uint32_t above = (to_bits(threshold) & 0x7fffffffu) + 1;
    if (above > kInfinity) return stored(threshold, false, above, place);  // not finite
    sum = Isa::zero();
    int count = 0;
    for (std::int64_t i = 0; i < vectors; ++i) {
        const auto own = Isa::load(v + i * kLanes);
        sum = Isa::add(sum, Isa::magnitudes_from(own, above));
        count += __builtin_popcount(Isa::at_least(own, above));
    }
    return stored(count == 0 ? 0.0f : Isa::sum_of_lanes(sum) / static_cast<float>(count), false, above, place);
}

enum class Rounding { kNearest, kRandom, kTernary };

// The whole numbers of one vector; `random`, of 16 bits, for kRandom.
template <Rounding rounding, int most>
inline Isa::Words whole_numbers(Isa::Vec v, const Unit& unit, Isa::Words random) {
    if constexpr (rounding == Rounding::kTernary) {
        return Isa::with_sign(Isa::ones_from(v, unit.above), v);
    } else if constexpr (rounding == Rounding::kNearest) {
        // A unit is rounded by at most 2^-8 of itself, so that the largest is below most + 1/2.
        static_assert(most * 0x1p-8 < 0.499);
        return Isa::to_nearest(Isa::multiply(v, Isa::all(unit.inverse)));
    } else {
        const auto units = Isa::multiply(Isa::multiply(Isa::absolute(v), Isa::all(unit.inverse)), Isa::all(0x1p16f));
        const Isa::Words limit = Isa::all_words(static_cast<std::uint32_t>(most) << 16);
        const Isa::Words random_units = Isa::sum(Isa::smaller(Isa::truncated(units), limit), random);
        return Isa::with_sign(Isa::upper_halves(random_units), v);
    }
}

// Calls `body` with a constant for the largest code.
template <class Body>
inline auto by_most(int most, Body body) {
    switch (most) {
        case 127:
            return body(std::integral_constant<int, 127>{});
        case 7:
            return body(std::integral_constant<int, 7>{});
        case 3:
            return body(std::integral_constant<int, 3>{});
        case 2:
            return body(std::integral_constant<int, 2>{});
        default:
            return body(std::integral_constant<int, 1>{});
    }
}

template <Rounding rounding, int most>
inline Unit unit_of(const float* v, std::int64_t numel, std::uint16_t* place) {
    const std::int64_t vectors = divided_up(numel, kBlockGroup) * kVectors;
    if constexpr (rounding == Rounding::kTernary) {
        return ternary_unit(v, vectors, numel, place);
    } else {
        return unit_of_largest(v, vectors, most, rounding == Rounding::kRandom, place);
    }
}

// The random words for the elements of a pair of groups.
inline void draw(std::int64_t pair, const RandomKey& key, Isa::Words (&words)[kVectors]) {
    // A multiple of 16, so that the pair's other counters have the same upper word.
    const auto first = static_cast<std::uint64_t>(pair) * kLanes;
    words[0] = Isa::count_up(static_cast<std::uint32_t>(first));
    words[1] = Isa::all_words(static_cast<std::uint32_t>(first >> 32));
    words[2] = Isa::all_words(key.step);
    words[3] = Isa::all_words(key.bucket);
    philox(words, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
}

// Quantises group `number` of all, v; what is lost goes to `rest`, which may be v. `words` are those of its pair.
template <Rounding rounding, int most>
inline void quantize_group(const float* v, std::int64_t number, const Unit& unit, const BlockTarget& target,
                           const Isa::Words (&words)[kVectors], float* rest, bool past_caches) {
    Isa::Words q[kVectors], random = Isa::all_words(0);
    for (int part = 0; part < kVectors; ++part) {
        const auto corrected = Isa::load(v + part * kLanes);
        auto left = corrected;
        q[part] = Isa::all_words(0);
        if (unit.sends) {
            if constexpr (rounding == Rounding::kRandom) {
                random = number % 2 == 0 ? Isa::upper_halves(words[part]) : Isa::lower_halves(words[part]);
            }
            q[part] = whole_numbers<rounding, most>(corrected, unit, random);
            left = Isa::subtract(corrected, Isa::multiply(Isa::to_floats(q[part]), Isa::all(unit.unit)));
        }
        if (past_caches) {
            Isa::stream(rest + part * kLanes, left);
        } else {
            Isa::store(rest + part * kLanes, left);
        }
    }
    pack<most>(q, target.codes + number * block_group_bytes(most));
}

// Divided by a block's size: that is a power of two, and dividing takes as long as half a group.
inline int shift_of(std::int64_t block) { return __builtin_ctzll(static_cast<unsigned long long>(block)); }

// Asks for the elements of a group, sizeof(T) lines of the cache.
template <class T>
inline void prefetch(const T* group) {
    for (std::size_t line = 0; line < sizeof(T); ++line) {
        __builtin_prefetch(reinterpret_cast<const char*>(group) + line * kBlockGroup);
    }
}

// The blocks of a place: `read(i, count, v)` fills v with `count` elements from the i-th on, `ahead(i)` prefetches a
// group of them. As a unit takes long to come by, those of several blocks are computed before the first is used; and as
// no memory is read meanwhile, the processor is asked to bring what comes next.
template <Rounding rounding, int most, class Read, class Ahead>
inline void quantize_by(Place place, const BlockTarget& target, Read read, Ahead ahead) {
    alignas(64) float v[kMaxBlock];
    Unit units[kMaxBlock / kBlockGroup];
    Isa::Words words[kVectors] = {};
    const std::int64_t size = target.format.block;
    const int shift = shift_of(size);
    for (std::int64_t i = place.begin; i < place.end; i += kMaxBlock) {
        const std::int64_t numel = i + kMaxBlock < place.end ? kMaxBlock : place.end - i;
        const std::int64_t groups = divided_up(numel, kBlockGroup);
        read(i, numel, v);
        for (std::int64_t j = numel; j < groups * kBlockGroup; ++j) v[j] = 0.0f;
        for (std::int64_t start = 0; start < numel; start += size) {
            units[start >> shift] = unit_of<rounding, most>(v + start, start + size < numel ? size : numel - start,
                                                            target.units + ((i + start) >> shift));
        }
        for (std::int64_t group = 0; group < groups; ++group) {
            if constexpr (rounding == Rounding::kRandom) {
                if (group % 2 == 0) draw((i / kBlockGroup + group) / 2, *target.key, words);
            }
            const std::int64_t start = group * kBlockGroup;
            if (i + kMaxBlock + start < place.end) ahead(i + kMaxBlock + start);
            const bool direct = target.rest != nullptr && start + kBlockGroup <= numel;
            quantize_group<rounding, most>(v + start, i / kBlockGroup + group, units[start >> shift], target, words,
                                           direct ? target.rest + i + start : v + start, direct && target.past_caches);
        }
        if (target.rest == nullptr) continue;
        for (std::int64_t j = numel / kBlockGroup * kBlockGroup; j < numel; ++j) target.rest[i + j] = v[j];
    }
    if (target.past_caches) Isa::fence();
}

template <int most, class Read, class Ahead>
inline void quantize_place(Place place, const BlockTarget& target, Read read, Ahead ahead) {
    if constexpr (most == 1) {
        if (target.format.fit == BlockFit::kTernary) {
            return quantize_by<Rounding::kTernary, most>(place, target, read, ahead);
        }
    }
    if (target.key != nullptr) return quantize_by<Rounding::kRandom, most>(place, target, read, ahead);
    quantize_by<Rounding::kNearest, most>(place, target, read, ahead);
}

template <class G, int most>
void quantize_of(const G* g, const float* residual, Place place, const BlockTarget& target) {
    const auto read = [&](std::int64_t i, std::int64_t count, float* v) {
        const std::int64_t last = count / kLanes * kLanes;
        if (residual == nullptr) {
            for (std::int64_t j = 0; j < last; j += kLanes) Isa::store(v + j, Isa::load(g + i + j));
            for (std::int64_t j = last; j < count; ++j) v[j] = to_float(g[i + j]);
        } else {
            for (std::int64_t j = 0; j < last; j += kLanes) {
                Isa::store(v + j, Isa::add(Isa::load(residual + i + j), Isa::load(g + i + j)));
            }
            for (std::int64_t j = last; j < count; ++j) v[j] = residual[i + j] + to_float(g[i + j]);
        }
    };
    quantize_place<most>(place, target, read, [&](std::int64_t i) {
        prefetch(g + i);
        if (residual != nullptr) prefetch(residual + i);
    });
}

template <class G>
void quantize(const void* grad, const float* residual, Place place, const BlockTarget& target) {
    by_most(target.format.most, [&](auto most) {
        quantize_of<G, decltype(most)::value>(static_cast<const G*>(grad), residual, place, target);
    });
}

// Before the first summand: -0 + x is x, the sign of zero included.
inline void clear(Isa::Vec (&sum)[kVectors]) {
    for (auto& part : sum) part = Isa::all(-0.0f);
}

// Adds q * u of the group with this number, in the block `block`, to `sum`.
template <int most>
inline void add_group(const BlockCodes& source, std::int64_t group, std::int64_t block, Isa::Vec (&sum)[kVectors]) {
    constexpr int kBytes = block_group_bytes(most), bits = kBytes / 8;
    const auto unit = Isa::all(to_float(BFloat16{source.units[block]}));
    const std::uint8_t* codes = source.codes + group * kBytes;
    // Of few bits, a block's quantisation keeps the processor from asking for the codes behind it in time.
    if constexpr (bits < 8) __builtin_prefetch(codes + kMaxBlock / kBlockGroup * kBytes);
    if constexpr (has_digits(most)) {
        add_digits<most>(codes, unit, sum);
    } else {
        for (int part = 0; part < bits / 2; ++part) {
            const Isa::Words bytes = Isa::load_bytes(codes + part * kLanes);
            add_codes<bits, 0>(bytes, unit, sum[part]);
            if constexpr (bits == 4) add_codes<bits, 4>(bytes, unit, sum[part + 2]);
            if constexpr (bits == 2) {
                add_codes<bits, 2>(bytes, unit, sum[1]);
                add_codes<bits, 4>(bytes, unit, sum[2]);
                add_codes<bits, 6>(bytes, unit, sum[3]);
            }
        }
    }
}

template <class G, int most>
void sum_quantize_of(const G* own, const BlockSummands& summands, Place place, const BlockTarget& target) {
    const int shift = shift_of(target.format.block);
    const auto read = [&](std::int64_t i, std::int64_t count, float* v) {
        for (std::int64_t start = 0; start < count; start += kBlockGroup) {
            const std::int64_t group = (i + start) / kBlockGroup, block = (i + start) >> shift;
            Isa::Vec sum[kVectors];
            clear(sum);
            for (int r = 0; r < summands.place; ++r) add_group<most>(summands.others[r], group, block, sum);
            for (int part = 0; part < kVectors; ++part) {
                sum[part] = Isa::add(sum[part], load_until(own, i + start + part * kLanes, i + count));
            }
            for (int r = summands.place; r < summands.count; ++r) {
                add_group<most>(summands.others[r], group, block, sum);
            }
            for (int part = 0; part < kVectors; ++part) Isa::store(v + start + part * kLanes, sum[part]);
        }
    };
    quantize_place<most>(place, target, read, [&](std::int64_t i) {
        prefetch(own + i);
        for (int r = 0; r < summands.count; ++r)
            __builtin_prefetch(summands.others[r].codes + i / kBlockGroup * block_group_bytes(most));
    });
}

template <class G>
void sum_quantize(const void* data, const BlockSummands& summands, Place place, const BlockTarget& target) {
    by_most(target.format.most, [&](auto most) {
        sum_quantize_of<G, decltype(most)::value>(static_cast<const G*>(data), summands, place, target);
    });
}

template <int most>
inline void sum_group(const BlockCodes* sources, int count, std::int64_t group, std::int64_t block,
                      Isa::Vec (&sum)[kVectors]) {
    clear(sum);
    for (int r = 0; r < count; ++r) add_group<most>(sources[r], group, block, sum);
}

template <class T, int most>
bool sum_of(const BlockCodes* sources, int count, std::int64_t size, float weight, T* out, Place place,
            bool past_caches) {
    const int shift = shift_of(size);
    Isa::Words largest = Isa::all_words(0);
    Isa::Vec sum[kVectors];
    const auto weights = Isa::all(weight);
    std::int64_t i = place.begin;
    for (; i + kBlockGroup <= place.end; i += kBlockGroup) {
        sum_group<most>(sources, count, i / kBlockGroup, i >> shift, sum);
        for (int part = 0; part < kVectors; ++part) {
            const auto result = Isa::template rounded<T>(Isa::multiply(sum[part], weights));
            largest = Isa::larger(largest, Isa::keys(result));
            T* target = out + i + part * kLanes;
            if constexpr (sizeof(T) == sizeof(float)) {
                if (past_caches) {
                    Isa::stream(target, result);
                    continue;
                }
            }
            Isa::store(target, result);
        }
    }
    if (i < place.end) {
        T some[kBlockGroup];
        sum_group<most>(sources, count, i / kBlockGroup, i >> shift, sum);
        for (int part = 0; i + part * kLanes < place.end; ++part) {
            const auto result = Isa::template rounded<T>(Isa::multiply(sum[part], weights));
            const std::uint32_t lanes = valid(i + part * kLanes, place.end);
            largest = Isa::larger(largest, Isa::keys(Isa::without(result, ~lanes & 0xffffu)));
            Isa::store(some + part * kLanes, result);
        }
        for (std::int64_t j = 0; i + j < place.end; ++j) out[i + j] = some[j];
    }
    if (past_caches) Isa::fence();
    return Isa::largest(largest) < kInfinity;
}

template <class T>
bool sum(const BlockCodes* sources, int count, BlockFormat format, float weight, void* data, Place place,
         bool past_caches) {
    return by_most(format.most, [&](auto most) {
        return sum_of<T, decltype(most)::value>(sources, count, format.block, weight, static_cast<T*>(data), place,
                                                past_caches);
    });
}

}  // namespace

extern const BlockKernels block_kernels = {
    {quantize<float>, quantize<Half>, quantize<BFloat16>},
    {sum_quantize<float>, sum_quantize<Half>, sum_quantize<BFloat16>},
    {sum<float>, sum<Half>, sum<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
