#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "../quantize/philox.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

constexpr int kVectors = kBlockGroup / kLanes;  // of a group
constexpr std::uint32_t kInfinity = Traits<float>::kInfinityKey;

// How the elements of a block become whole numbers.
struct Unit {
    float unit, inverse;
    std::uint32_t above;  // kTernary: keys from here on are sent
    bool sends;
};

// `unit` as it is stored, and how to quantise by it.
inline Unit stored(float unit, std::uint32_t above, std::uint16_t* place) {
    const BlockUnit by = block_unit(unit);
    *place = by.stored;
    return {by.unit, by.inverse, above, by.sends};
}

inline float sum_of_lanes(Isa::Vec v) {
    float lanes[kLanes];
    Isa::store(lanes, v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    return lanes[0];
}

// The unit of a block of `numel` elements, filled up with zeros to whole vectors.
inline Unit unit_of_largest(const float* v, std::int64_t vectors, int bits, std::uint16_t* place) {
    Isa::Words largest = Isa::all_words(0);
    for (std::int64_t i = 0; i < vectors; ++i) largest = Isa::larger(largest, Isa::keys(Isa::load(v + i * kLanes)));
    return stored(from_bits(Isa::largest(largest)) / static_cast<float>(quantize_levels(bits)), 0, place);
}

inline Unit ternary_unit(const float* v, std::int64_t vectors, std::int64_t numel, std::uint16_t* place) {
    Isa::Vec sum = Isa::zero();
    for (std::int64_t i = 0; i < vectors; ++i) sum = Isa::add(sum, Isa::absolute(Isa::load(v + i * kLanes)));
    const float threshold = 0.7f * (sum_of_lanes(sum) / static_cast<float>(numel));
    const std::uint32_t above = (to_bits(threshold) & 0x7fffffffu) + 1;
    if (above > kInfinity) return stored(threshold, above, place);  // not finite
    sum = Isa::zero();
    int count = 0;
    for (std::int64_t i = 0; i < vectors; ++i) {
        const auto own = Isa::load(v + i * kLanes);
        const std::uint32_t mask = Isa::at_least(own, above);
        sum = Isa::add(sum, Isa::without(Isa::absolute(own), ~mask & 0xffffu));
        count += __builtin_popcount(mask);
    }
    return stored(count == 0 ? 0.0f : sum_of_lanes(sum) / static_cast<float>(count), above, place);
}

enum class Rounding { kNearest, kRandom, kTernary };

// The whole numbers of one vector; `random` for kRandom.
template <Rounding rounding>
inline Isa::Words whole_numbers(Isa::Vec v, const Unit& unit, int levels, Isa::Words random) {
    if constexpr (rounding == Rounding::kTernary) {
        const Isa::Words one = Isa::negated(Isa::all_words(1), Isa::below_zero(v));
        return Isa::to_nearest(Isa::without(Isa::to_floats(one), ~Isa::at_least(v, unit.above) & 0xffffu));
    } else if constexpr (rounding == Rounding::kNearest) {
        return Isa::within(Isa::to_nearest(Isa::multiply(v, Isa::all(unit.inverse))), levels);
    } else {
        const auto units = Isa::multiply(Isa::multiply(Isa::absolute(v), Isa::all(unit.inverse)), Isa::all(0x1p16f));
        const Isa::Words most = Isa::all_words(static_cast<std::uint32_t>(levels) << 16);
        const Isa::Words whole =
            Isa::upper_halves(Isa::sum(Isa::smaller(Isa::truncated(units), most), Isa::upper_halves(random)));
        return Isa::negated(whole, Isa::below_zero(v));
    }
}

template <Rounding rounding>
inline Unit unit_of(const float* v, std::int64_t numel, int bits, std::uint16_t* place) {
    const std::int64_t vectors = divided_up(numel, kBlockGroup) * kVectors;
    if constexpr (rounding == Rounding::kTernary) {
        return ternary_unit(v, vectors, numel, place);
    } else {
        return unit_of_largest(v, vectors, bits, place);
    }
}

inline void pack(const Isa::Words (&q)[kVectors], int bits, std::uint8_t* codes) {
    if (bits == 8) {
        for (int part = 0; part < kVectors; ++part) Isa::store_bytes(codes + part * kLanes, q[part]);
    } else if (bits == 4) {
        const Isa::Words low = Isa::all_words(15);
        for (int part = 0; part < 2; ++part) {
            Isa::store_bytes(codes + part * kLanes,
                             Isa::bit_or(Isa::bit_and(q[part], low), Isa::shift_left<4>(q[part + 2])));
        }
    } else {
        const Isa::Words low = Isa::all_words(3);
        const Isa::Words first = Isa::bit_or(Isa::bit_and(q[0], low), Isa::shift_left<2>(Isa::bit_and(q[1], low)));
        const Isa::Words second = Isa::bit_or(Isa::bit_and(q[2], low), Isa::shift_left<2>(q[3]));
        Isa::store_bytes(codes, Isa::bit_or(first, Isa::shift_left<4>(second)));
    }
}

template <int bits>
inline void unpack(const std::uint8_t* codes, Isa::Words (&q)[kVectors]) {
    if constexpr (bits == 8) {
        for (int part = 0; part < kVectors; ++part) {
            q[part] = Isa::shift_right<24>(Isa::shift_left<24>(Isa::load_bytes(codes + part * kLanes)));
        }
    } else if constexpr (bits == 4) {
        for (int part = 0; part < 2; ++part) {
            const Isa::Words bytes = Isa::load_bytes(codes + part * kLanes);
            q[part] = Isa::shift_right<28>(Isa::shift_left<28>(bytes));
            q[part + 2] = Isa::shift_right<28>(Isa::shift_left<24>(bytes));
        }
    } else {
        const Isa::Words bytes = Isa::load_bytes(codes);
        q[0] = Isa::shift_right<30>(Isa::shift_left<30>(bytes));
        q[1] = Isa::shift_right<30>(Isa::shift_left<28>(bytes));
        q[2] = Isa::shift_right<30>(Isa::shift_left<26>(bytes));
        q[3] = Isa::shift_right<30>(Isa::shift_left<24>(bytes));
    }
}

// The random words for the elements of a group.
inline void draw(std::int64_t group, const RandomKey& key, Isa::Words (&words)[kVectors]) {
    // A multiple of 16, so that the group's other counters have the same upper word.
    const auto first = static_cast<std::uint64_t>(group) * kLanes;
    words[0] = Isa::count_up(static_cast<std::uint32_t>(first));
    words[1] = Isa::all_words(static_cast<std::uint32_t>(first >> 32));
    words[2] = Isa::all_words(key.step);
    words[3] = Isa::all_words(key.bucket);
    philox(words, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
}

// Quantises group `number` of all, v; what is lost goes to `rest`, which may be v.
template <Rounding rounding>
inline void quantize_group(const float* v, std::int64_t number, const Unit& unit, const BlockTarget& target,
                           float* rest, bool past_caches) {
    const int bits = target.format.bits, levels = quantize_levels(bits);
    Isa::Words q[kVectors], words[kVectors] = {};
    if constexpr (rounding == Rounding::kRandom) draw(number, *target.key, words);
    for (int part = 0; part < kVectors; ++part) {
        const auto corrected = Isa::load(v + part * kLanes);
        auto left = corrected;
        q[part] = Isa::all_words(0);
        if (unit.sends) {
            q[part] = whole_numbers<rounding>(corrected, unit, levels, words[part]);
            left = Isa::subtract(corrected, Isa::multiply(Isa::to_floats(q[part]), Isa::all(unit.unit)));
        }
        if (past_caches) {
            Isa::stream(rest + part * kLanes, left);
        } else {
            Isa::store(rest + part * kLanes, left);
        }
    }
    pack(q, bits, target.codes + number * 8 * bits);
}

// Divided by a block's size: that is a power of two, and dividing takes as long as half a group.
inline int shift_of(std::int64_t block) { return __builtin_ctzll(static_cast<unsigned long long>(block)); }

// The blocks of a place: `read(i, count, v)` fills v with `count` elements from the i-th on. As a unit takes long to
// come by, those of several blocks are computed before the first is used.
template <Rounding rounding, class Read>
inline void quantize_by(Place place, const BlockTarget& target, Read read) {
    alignas(64) float v[kMaxBlock];
    Unit units[kMaxBlock / kBlockGroup];
    const std::int64_t size = target.format.block;
    const int shift = shift_of(size);
    for (std::int64_t i = place.begin; i < place.end; i += kMaxBlock) {
        const std::int64_t numel = i + kMaxBlock < place.end ? kMaxBlock : place.end - i;
        const std::int64_t groups = divided_up(numel, kBlockGroup);
        read(i, numel, v);
        for (std::int64_t j = numel; j < groups * kBlockGroup; ++j) v[j] = 0.0f;
        for (std::int64_t start = 0; start < numel; start += size) {
            units[start >> shift] = unit_of<rounding>(v + start, start + size < numel ? size : numel - start,
                                                      target.format.bits, target.units + ((i + start) >> shift));
        }
        for (std::int64_t group = 0; group < groups; ++group) {
            const std::int64_t start = group * kBlockGroup;
            const bool direct = target.rest != nullptr && start + kBlockGroup <= numel;
            quantize_group<rounding>(v + start, i / kBlockGroup + group, units[start >> shift], target,
                                     direct ? target.rest + i + start : v + start, direct && target.past_caches);
        }
        if (target.rest == nullptr) continue;
        for (std::int64_t j = numel / kBlockGroup * kBlockGroup; j < numel; ++j) target.rest[i + j] = v[j];
    }
    if (target.past_caches) Isa::fence();
}

template <class Read>
inline void quantize_place(Place place, const BlockTarget& target, Read read) {
    if (target.format.fit == BlockFit::kTernary) return quantize_by<Rounding::kTernary>(place, target, read);
    if (target.key != nullptr) return quantize_by<Rounding::kRandom>(place, target, read);
    quantize_by<Rounding::kNearest>(place, target, read);
}

template <class G>
void quantize(const void* grad, const float* residual, Place place, const BlockTarget& target) {
    const G* g = static_cast<const G*>(grad);
    quantize_place(place, target, [&](std::int64_t i, std::int64_t count, float* v) {
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
    });
}

// Before the first summand: -0 + x is x, the sign of zero included.
inline void clear(Isa::Vec (&sum)[kVectors]) {
    for (auto& part : sum) part = Isa::all(-0.0f);
}

// Adds q * u of the group with this number, in the block `block`, to `sum`.
template <int bits>
inline void add_group(const BlockCodes& source, std::int64_t group, std::int64_t block, Isa::Vec (&sum)[kVectors]) {
    const auto unit = Isa::all(to_float(BFloat16{source.units[block]}));
    Isa::Words q[kVectors];
    const std::uint8_t* codes = source.codes + group * 8 * bits;
    // Of few bits, a block's quantisation keeps the processor from asking for the codes behind it in time.
    if constexpr (bits < 8) __builtin_prefetch(codes + kMaxBlock / kBlockGroup * 8 * bits);
    unpack<bits>(codes, q);
    for (int part = 0; part < kVectors; ++part) {
        sum[part] = Isa::add(sum[part], Isa::multiply(Isa::to_floats(q[part]), unit));
    }
}

template <class G, int bits>
void sum_quantize_of(const G* own, const BlockSummands& summands, Place place, const BlockTarget& target) {
    const int shift = shift_of(target.format.block);
    quantize_place(place, target, [&](std::int64_t i, std::int64_t count, float* v) {
        for (std::int64_t start = 0; start < count; start += kBlockGroup) {
            const std::int64_t group = (i + start) / kBlockGroup, block = (i + start) >> shift;
            Isa::Vec sum[kVectors];
            clear(sum);
            for (int r = 0; r < summands.place; ++r) add_group<bits>(summands.others[r], group, block, sum);
            for (int part = 0; part < kVectors; ++part) {
                sum[part] = Isa::add(sum[part], load_until(own, i + start + part * kLanes, i + count));
            }
            for (int r = summands.place; r < summands.count; ++r) {
                add_group<bits>(summands.others[r], group, block, sum);
            }
            for (int part = 0; part < kVectors; ++part) Isa::store(v + start + part * kLanes, sum[part]);
        }
    });
}

template <class G>
void sum_quantize(const void* data, const BlockSummands& summands, Place place, const BlockTarget& target) {
    const G* own = static_cast<const G*>(data);
    if (target.format.bits == 8) return sum_quantize_of<G, 8>(own, summands, place, target);
    if (target.format.bits == 4) return sum_quantize_of<G, 4>(own, summands, place, target);
    sum_quantize_of<G, 2>(own, summands, place, target);
}

template <class T, int bits>
bool sum_of(const BlockCodes* sources, int count, std::int64_t block, float weight, T* out, Place place,
            bool past_caches) {
    const int shift = shift_of(block);
    Isa::Words largest = Isa::all_words(0);
    const auto weights = Isa::all(weight);
    for (std::int64_t i = place.begin; i < place.end; i += kBlockGroup) {
        Isa::Vec sum[kVectors];
        clear(sum);
        for (int r = 0; r < count; ++r) add_group<bits>(sources[r], i / kBlockGroup, i >> shift, sum);
        for (int part = 0; part < kVectors; ++part) {
            const std::int64_t start = i + part * kLanes;
            if (start >= place.end) break;
            const auto result = Isa::template rounded<T>(Isa::multiply(sum[part], weights));
            const std::int64_t left = place.end - start;
            if (left >= kLanes) {
                if constexpr (sizeof(T) == sizeof(float)) {
                    if (past_caches) {
                        Isa::stream(out + start, result);
                    } else {
                        Isa::store(out + start, result);
                    }
                } else {
                    Isa::store(out + start, result);
                }
            } else {
                T some[kLanes];
                Isa::store(some, result);
                for (std::int64_t j = 0; j < left; ++j) out[start + j] = some[j];
            }
            largest = Isa::larger(largest, Isa::keys(Isa::without(result, ~valid(start, place.end) & 0xffffu)));
        }
    }
    if (past_caches) Isa::fence();
    return Isa::largest(largest) < kInfinity;
}

template <class T>
bool sum(const BlockCodes* sources, int count, BlockFormat format, float weight, void* data, Place place,
         bool past_caches) {
    T* out = static_cast<T*>(data);
    if (format.bits == 8) return sum_of<T, 8>(sources, count, format.block, weight, out, place, past_caches);
    if (format.bits == 4) return sum_of<T, 4>(sources, count, format.block, weight, out, place, past_caches);
    return sum_of<T, 2>(sources, count, format.block, weight, out, place, past_caches);
}

}  // namespace

extern const BlockKernels block_kernels = {
    {quantize<float>, quantize<Half>, quantize<BFloat16>},
    {sum_quantize<float>, sum_quantize<Half>, sum_quantize<BFloat16>},
    {sum<float>, sum<Half>, sum<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
