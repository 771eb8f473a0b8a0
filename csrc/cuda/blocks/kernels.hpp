// Block quantisation, one pass over memory each: quantise, add, and both at once.
//
// A thread has four neighbouring elements of each of the four parts, 16 elements long, of a group. So it draws each
// random word once, and its codes are whole words of memory: nothing but the fit of a unit needs other threads.
#pragma once

#include <type_traits>

#include "../quantize/kernels.hpp"
#include "hvd_compress/blocks.hpp"

namespace hvd_compress::cuda {

constexpr int kPart = 16, kParts = static_cast<int>(kBlockGroup) / kPart;
constexpr int kGroupThreads = kPart / kWide;
constexpr int kBlockThreads = 256;
constexpr int kBlockTile = kBlockThreads * kParts * kWide;
static_assert(kBlockTile % kMaxBlock == 0, "no block lies in two tiles");

using Values = float[kParts][kWide];

// The elements of a thread.
struct Spot {
    std::int64_t group;
    int lane;  // its first element, of each part

    HVD_COMPRESS_TILE Spot(std::int64_t tile, int t)
        : group(tile * (kBlockTile / kBlockGroup) + t / kGroupThreads), lane(t % kGroupThreads * kWide) {}
    HVD_COMPRESS_TILE std::int64_t at(int part) const { return group * kBlockGroup + part * kPart + lane; }
};

// `whole` says that a tile lies within n elements and all memory is aligned; it is known when this is compiled.
template <bool whole, class T>
HVD_COMPRESS_TILE void load(const T* x, Spot spot, std::int64_t n, Values& v) {
    HVD_COMPRESS_UNROLL
    for (int part = 0; part < kParts; ++part) {
        const std::int64_t i = spot.at(part);
        load<whole>(x, i, n, v[part]);
    }
}

template <bool whole, class T>
HVD_COMPRESS_TILE void store(T* x, Spot spot, std::int64_t n, const Values& v) {
    HVD_COMPRESS_UNROLL
    for (int part = 0; part < kParts; ++part) {
        const std::int64_t i = spot.at(part);
        store<whole>(x, i, n, v[part]);
    }
}

template <bool whole>
HVD_COMPRESS_TILE std::uint32_t load_word(const std::uint8_t* own) {
    if constexpr (whole) return *reinterpret_cast<const std::uint32_t*>(own);
    return own[0] | own[1] << 8 | own[2] << 16 | static_cast<std::uint32_t>(own[3]) << 24;
}

template <bool whole>
HVD_COMPRESS_TILE void store_word(std::uint8_t* own, std::uint32_t word) {
    if constexpr (whole) {
        *reinterpret_cast<std::uint32_t*>(own) = word;
    } else {
        for (int j = 0; j < kWide; ++j) own[j] = static_cast<std::uint8_t>(word >> 8 * j);
    }
}

// The codes of a thread: byte j of a word holds the j-th of its elements of one part or, above each other, of several.
template <int most>
struct CodeBits {
    static constexpr int kBits = block_group_bytes(most) / 8, kWords = kBits / 2;
    static constexpr std::uint32_t kMask = (1u << kBits) - 1;
    std::uint32_t word[kWords];

    static HVD_COMPRESS_TILE std::int64_t at(Spot spot, int w) {
        return spot.group * 8 * kBits + w * kPart + spot.lane;
    }
    static HVD_COMPRESS_TILE int shift(int part, int j) { return 8 * j + part / kWords * kBits; }

    HVD_COMPRESS_TILE void clear() {
        HVD_COMPRESS_UNROLL
        for (std::uint32_t& each : word) each = 0;
    }
    HVD_COMPRESS_TILE void put(std::int32_t q, int part, int j) {
        word[part % kWords] |= (static_cast<std::uint32_t>(q) & kMask) << shift(part, j);
    }
    // q as fp32: as the last bits of 2^23 its sum with 2^(kBits - 1) is exact, and no unit for conversions is needed.
    HVD_COMPRESS_TILE float get(int part, int j) const {
        constexpr std::uint32_t top = 1u << (kBits - 1);
        const std::uint32_t raised = (word[part % kWords] >> shift(part, j) & kMask) ^ top;
        return from_bits(to_bits(0x1p23f) | raised) - (0x1p23f + static_cast<float>(top));
    }

    template <bool whole>
    HVD_COMPRESS_TILE void load(const std::uint8_t* codes, Spot spot) {
        HVD_COMPRESS_UNROLL
        for (int w = 0; w < kWords; ++w) word[w] = load_word<whole>(codes + at(spot, w));
    }
    template <bool whole>
    HVD_COMPRESS_TILE void store(std::uint8_t* codes, Spot spot) const {
        HVD_COMPRESS_UNROLL
        for (int w = 0; w < kWords; ++w) store_word<whole>(codes + at(spot, w), word[w]);
    }
};

// The same in digits: a number of four parts for each of a thread's elements of one.
template <int most>
struct CodeDigits {
    static constexpr int kBase = digit_base(most), kBits = bits_above_byte(most), kBytes = kWide * kBits / 8;
    std::uint32_t number[kWide];

    static HVD_COMPRESS_TILE constexpr std::uint32_t power(int part) {
        std::uint32_t found = 1;
        for (int k = 0; k < part; ++k) found *= kBase;
        return found;
    }
    static HVD_COMPRESS_TILE std::int64_t at(Spot spot) { return spot.group * block_group_bytes(most) + spot.lane; }
    static HVD_COMPRESS_TILE std::int64_t above_at(Spot spot) {
        return spot.group * block_group_bytes(most) + kPart + spot.lane / kWide * kBytes;
    }

    HVD_COMPRESS_TILE void clear() {  // of zeros
        HVD_COMPRESS_UNROLL
        for (std::uint32_t& each : number) each = most * (power(0) + power(1) + power(2) + power(3));
    }
    HVD_COMPRESS_TILE void put(std::int32_t q, int part, int j) {
        number[j] += static_cast<std::uint32_t>(q) * power(part);
    }
    HVD_COMPRESS_TILE float get(int part, int j) const {
        const std::uint32_t digit = number[j] / power(part) % kBase;
        return from_bits(to_bits(0x1p23f) | digit) - (0x1p23f + static_cast<float>(most));
    }

    template <bool whole>
    HVD_COMPRESS_TILE void load(const std::uint8_t* codes, Spot spot) {
        const std::uint32_t low = load_word<whole>(codes + at(spot));
        std::uint32_t above = 0;
        HVD_COMPRESS_UNROLL
        for (int k = 0; k < kBytes; ++k) above |= static_cast<std::uint32_t>(codes[above_at(spot) + k]) << 8 * k;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) {
            number[j] = (low >> 8 * j & 0xff) | (above >> kBits * j & ((1u << kBits) - 1)) << 8;
        }
    }
    template <bool whole>
    HVD_COMPRESS_TILE void store(std::uint8_t* codes, Spot spot) const {
        std::uint32_t low = 0, above = 0;
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) {
            low |= (number[j] & 0xff) << 8 * j;
            above |= number[j] >> 8 << kBits * j;
        }
        store_word<whole>(codes + at(spot), low);
        HVD_COMPRESS_UNROLL
        for (int k = 0; k < kBytes; ++k) codes[above_at(spot) + k] = static_cast<std::uint8_t>(above >> 8 * k);
    }
};

template <int most>
using Codes = std::conditional_t<has_digits(most), CodeDigits<most>, CodeBits<most>>;

// v = residual + grad, or grad where there is no residual.
template <class G>
struct FedBlocks {
    const G* grad;
    const float* residual;
    float* out;
    std::int64_t n;

    template <bool whole>
    HVD_COMPRESS_TILE void read(Spot spot, Values& v) const {
        load<whole>(grad, spot, n, v);
        if (residual == nullptr) return;
        Values kept;
        load<whole>(residual, spot, n, kept);
        for_each_value(v, [&](float& x, int part, int j) { x = kept[part][j] + x; });
    }
};

// What up to `capacity` ranks sent, of blocks of kBlockGroup << shift elements.
template <int capacity>
struct BlockSources {
    BlockCodes source[capacity];
    int count, shift;

    // Adds q * u of the sources begin..end-1 to v.
    template <bool whole, int most>
    HVD_COMPRESS_TILE void add(int begin, int end, Spot spot, Values& v) const {
#ifdef __CUDACC__
#pragma unroll 2
#endif
        for (int r = begin; r < end; ++r) {
            Codes<most> codes;
            codes.template load<whole>(source[r].codes, spot);
            const float unit = to_float(BFloat16{source[r].units[spot.group >> shift]});
            for_each_value(v, [&](float& x, int part, int j) { x += codes.get(part, j) * unit; });
        }
    }
};

// Before the first summand: -0 + x is x, the sign of zero included.
HVD_COMPRESS_TILE void clear(Values& v) {
    for_each_value(v, [](float& x, int, int) { x = -0.0f; });
}

// v = own + others, own as the `place`-th summand.
template <class G, int most, int capacity>
struct SummedBlocks {
    const G* own;
    BlockSources<capacity> others;
    int place;
    float* out;
    std::int64_t n;

    template <bool whole>
    HVD_COMPRESS_TILE void read(Spot spot, Values& v) const {
        Values mine;
        load<whole>(own, spot, n, mine);
        clear(v);
        if (whole || spot.group * kBlockGroup < n) {
            others.template add<whole, most>(0, place, spot, v);
            for_each_value(v, [&](float& x, int part, int j) { x += mine[part][j]; });
            others.template add<whole, most>(place, others.count, spot, v);
        }
        if (whole) return;
        for_each_value(v, [&](float& x, int part, int j) { x = spot.at(part) + j < n ? x : 0.0f; });
    }
};

// How the elements of a block become whole numbers.
struct Unit {
    BlockUnit by;
    std::uint32_t above;  // kTernary: magnitudes from here on are sent
};

struct BlockTarget {
    std::int64_t n;
    int shift;  // a block has kBlockGroup << shift elements
    bool random;
    RandomKey key;
    std::uint8_t* codes;
    std::uint16_t* units;
};

HVD_COMPRESS_TILE std::uint32_t magnitude(float v) { return to_bits(v) & 0x7fffffffu; }

template <int most>
struct LargestFit {
    static constexpr int kMost = most, kResidentBlocks = 3;
    struct Shared {
        std::uint32_t scratch[32];
    };

    template <class B, class V, class U>
    static HVD_COMPRESS_TILE void find(const B& block, Shared& shared, const BlockTarget& target, V& v, U& unit) {
        typename B::template Each<std::uint32_t> largest;
        block.each([&](int t) {
            std::uint32_t own = 0;
            for_each_value(v[t], [&](float x, int, int) { own = magnitude(x) > own ? magnitude(x) : own; });
            largest[t] = own;
        });
        block.largest_among(largest, kGroupThreads << target.shift, shared.scratch);
        block.each(
            [&](int t) { unit[t].by = block_unit(from_bits(largest[t]) / static_cast<float>(most), target.random); });
    }

    static HVD_COMPRESS_TILE std::int32_t whole_number(float v, const Unit& unit, bool random, std::uint32_t bits16) {
        if (!random) {  // the last bits of 1.5 * 2^23 + x are x, rounded to nearest even
            const auto q = static_cast<std::int32_t>(to_bits(v * unit.by.inverse + 0x1.8p23f) - to_bits(0x1.8p23f));
            return q > most ? most : q < -most ? -most : q;
        }
        const auto steps = static_cast<std::int32_t>(from_bits(magnitude(v)) * unit.by.inverse * 0x1p16f);
        const auto limited = static_cast<std::uint32_t>(steps < most << 16 ? steps : most << 16);
        const auto whole = static_cast<std::int32_t>((limited + bits16) >> 16);
        return v < 0.0f ? -whole : whole;
    }
};

// Sums in the order of the header: a thread for each lane of each block.
struct TernaryFit {
    static constexpr int kMost = 1, kResidentBlocks = 2;  // three would spill on sm_100
    static constexpr int kMostLanes = kBlockTile / kBlockGroup * kPart;
    struct Shared {
        float magnitudes[kBlockTile];
        float all[kMostLanes], sent[kMostLanes];
        int counts[kMostLanes];
    };

    template <class B, class V, class U>
    static HVD_COMPRESS_TILE void find(const B& block, Shared& shared, const BlockTarget& target, V& v, U& unit) {
        const int size = static_cast<int>(kBlockGroup) << target.shift, lanes = kBlockTile / size * kPart;
        const std::int64_t left = target.n - block.index * kBlockTile;
        const auto above = [&](int of) {  // of this block: the least magnitude that is sent
            const std::int64_t numel = left - std::int64_t{of} * size;
            const float mean = sum_of_lanes(shared.all + of * kPart) / static_cast<float>(numel < size ? numel : size);
            return magnitude(0.7f * mean) + 1;
        };
        block.each([&](int t) {
            const Spot spot(0, t);
            for_each_value(v[t], [&](float x, int part, int j) {
                shared.magnitudes[spot.at(part) + j] = from_bits(magnitude(x));
            });
        });
        block.sync();
        block.each([&](int t) {
            for (int lane = t; lane < lanes; lane += kBlockThreads) {
                const float* const own = shared.magnitudes + lane / kPart * size + lane % kPart;
                float sum = 0.0f;
                for (int i = 0; i < size; i += kPart) sum += own[i];
                shared.all[lane] = sum;
            }
        });
        block.sync();
        block.each([&](int t) {
            for (int lane = t; lane < lanes; lane += kBlockThreads) {
                const float* const own = shared.magnitudes + lane / kPart * size + lane % kPart;
                const std::uint32_t least = above(lane / kPart);
                float sum = 0.0f;
                int count = 0;
                for (int i = 0; i < size; i += kPart) {
                    const bool sent = to_bits(own[i]) >= least;
                    sum += sent ? own[i] : 0.0f;
                    count += sent;
                }
                shared.sent[lane] = sum;
                shared.counts[lane] = count;
            }
        });
        block.sync();
        block.each([&](int t) {
            const int of = t / (kGroupThreads << target.shift);
            const std::uint32_t least = above(of);
            int count = 0;
            for (int lane = 0; lane < kPart; ++lane) count += shared.counts[of * kPart + lane];
            const float mean = sum_of_lanes(shared.sent + of * kPart) / static_cast<float>(count);
            const bool finite = least <= Traits<float>::kInfinityKey;
            unit[t] = {block_unit(!finite ? from_bits(least - 1) : count == 0 ? 0.0f : mean, false), least};
        });
    }

    static HVD_COMPRESS_TILE std::int32_t whole_number(float v, const Unit& unit, bool, std::uint32_t) {
        if (magnitude(v) < unit.above) return 0;
        return v < 0.0f ? -1 : 1;
    }

  private:
    template <int count = kPart>
    static HVD_COMPRESS_TILE float sum_of_lanes(const float* lanes) {
        if constexpr (count == 1) {
            return lanes[0];
        } else {
            float sums[count / 2];
            HVD_COMPRESS_UNROLL
            for (int j = 0; j < count / 2; ++j) sums[j] = lanes[j] + lanes[j + count / 2];
            return sum_of_lanes<count / 2>(sums);
        }
    }
};

template <class Source, class Fit>
struct QuantizeBlocks {
    static constexpr int kThreads = kBlockThreads, kResidentBlocks = Fit::kResidentBlocks;
    using Shared = typename Fit::Shared;
    Source source;
    BlockTarget target;
    bool aligned;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (aligned && (block.index + 1) * kBlockTile <= target.n) {
            quantize<true>(block, shared);
        } else {
            quantize<false>(block, shared);
        }
    }

  private:
    template <bool whole, class B>
    HVD_COMPRESS_TILE void quantize(const B& block, Shared& shared) const {
        typename B::template Each<Values> v;
        typename B::template Each<Unit> unit;
        block.each([&](int t) { source.template read<whole>(Spot(block.index, t), v[t]); });
        Fit::find(block, shared, target, v, unit);
        block.each([&](int t) {
            const Spot spot(block.index, t);
            if (!whole && spot.group * kBlockGroup >= target.n) return;
            write<whole>(spot, v[t], unit[t]);
            const bool first = spot.lane == 0 && (spot.group & ((1 << target.shift) - 1)) == 0;
            if (first) target.units[spot.group >> target.shift] = unit[t].by.stored;
        });
    }

    template <bool whole>
    HVD_COMPRESS_TILE void write(Spot spot, Values& v, const Unit& unit) const {
        Codes<Fit::kMost> codes;
        codes.clear();
        if (unit.by.sends) round(spot, v, unit, codes);
        codes.template store<whole>(target.codes, spot);
        if (source.out != nullptr) store<whole>(source.out, spot, target.n, v);
    }

    HVD_COMPRESS_TILE void round(Spot spot, Values& v, const Unit& unit, Codes<Fit::kMost>& codes) const {
        HVD_COMPRESS_UNROLL
        for (int j = 0; j < kWide; ++j) {
            std::uint32_t words[kParts] = {};
            if (target.random) draw(spot.group, spot.lane + j, words);
            HVD_COMPRESS_UNROLL
            for (int part = 0; part < kParts; ++part) {
                const std::int32_t q = Fit::whole_number(v[part][j], unit, target.random, words[part]);
                codes.put(q, part, j);
                v[part][j] -= static_cast<float>(q) * unit.by.unit;
            }
        }
    }

    // Of each word the half that belongs to the group.
    HVD_COMPRESS_TILE void draw(std::int64_t group, int lane, std::uint32_t (&words)[kParts]) const {
        const auto counter = static_cast<std::uint64_t>(group / 2 * kPart + lane);
        words[0] = static_cast<std::uint32_t>(counter);
        words[1] = static_cast<std::uint32_t>(counter >> 32);
        words[2] = target.key.step;
        words[3] = target.key.bucket;
        philox(words, static_cast<std::uint32_t>(target.key.seed), static_cast<std::uint32_t>(target.key.seed >> 32));
        HVD_COMPRESS_UNROLL
        for (std::uint32_t& word : words) word = group % 2 == 0 ? word >> 16 : word & 0xffffu;
    }
};

template <class T, int most, int capacity>
struct SumBlocks {
    static constexpr int kThreads = kBlockThreads;
    struct Shared {};
    BlockSources<capacity> sources;
    T* out;
    std::int64_t n;
    bool aligned;
    float weight;
    std::int32_t* finite;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        const bool whole = aligned && (block.index + 1) * kBlockTile <= n;
        block.each([&](int t) {
            const Spot spot(block.index, t);
            if (whole) {
                sum<true>(spot);
            } else if (spot.group * kBlockGroup < n) {
                sum<false>(spot);
            }
        });
    }

  private:
    template <bool whole>
    HVD_COMPRESS_TILE void sum(Spot spot) const {
        Values v;
        clear(v);
        sources.template add<whole, most>(0, sources.count, spot, v);
        bool good = true;
        for_each_value(v, [&](float& x, int part, int j) {
            x = to_float(from_float<T>(x * weight));
            good &= magnitude(x) < Traits<float>::kInfinityKey || (!whole && spot.at(part) + j >= n);
        });
        store<whole>(out, spot, n, v);
        if (!good) store_same(finite, 0);
    }
};

}  // namespace hvd_compress::cuda
