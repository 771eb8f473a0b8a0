// Block quantisation, one pass over memory each: quantise, add, and both at once.
//
// A thread has four neighbouring elements of each of the four parts of a group (codes.hpp). So it draws each random
// word once: nothing but the fit of a unit needs other threads.
#pragma once

#include "codes.hpp"

namespace hvd_compress::cuda {

using Values = float[kParts][kWide];

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
