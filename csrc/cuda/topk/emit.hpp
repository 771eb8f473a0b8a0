// From candidates, or all elements, to the k largest in the order of their indices.
#pragma once

#include "digits.hpp"

namespace hvd_compress::cuda {

// What a tile's part of the selection is made from: its candidates or, without enough of them, all its elements.
template <class Source>
struct Elements {
    Source source;
    const State* state;
    const TileRow* rows;
    Candidates found;
    std::int64_t n, tiles;

    HVD_COMPRESS_TILE bool are_all() const { return state->stage == Stage::kAll; }
    // More than there is room for only where someone has written to the input meanwhile.
    HVD_COMPRESS_TILE std::int64_t candidates() const {
        return state->candidates() < found.capacity ? state->candidates() : found.capacity;
    }
    HVD_COMPRESS_TILE std::int64_t count(std::int64_t tile, bool all) const {
        if (!all) return rows[tile].count;
        return n - tile * TopkTile::kNumel < TopkTile::kNumel ? n - tile * TopkTile::kNumel : TopkTile::kNumel;
    }
    // Where a tile's first element lies, among all or the candidates.
    HVD_COMPRESS_TILE std::int64_t first(std::int64_t tile, bool all) const {
        return all ? tile * TopkTile::kNumel : rows[tile].first;
    }
    HVD_COMPRESS_TILE float value(std::int64_t i, bool all) const { return all ? source.left(i) : found.values[i]; }
    HVD_COMPRESS_TILE std::int64_t index(std::int64_t i, bool all) const { return all ? i : found.indices[i]; }
};

// Counts the elements of the range by their first digit, or those with the first digit by the second, in the shared
// memory of blocks: in that of the GPU many equal ones would wait for each other. The last block chooses.
template <class Source, bool first>
struct CountDigit {
    static constexpr int kThreads = kTopkThreads;
    static constexpr std::int64_t kEach = 8 * kThreads;  // candidates of a block, at least
    using Shared = DigitShared;
    Elements<Source> elements;
    State* state;
    std::uint32_t* bins;
    std::int64_t k;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        // Candidates lie together, whatever tile they are from.
        const std::int64_t total = all ? elements.n : elements.candidates(), parts = (total + kEach - 1) / kEach;
        const std::int64_t blocks = parts < block.count ? (parts > 0 ? parts : 1) : block.count;
        if (block.index >= blocks) return;
        const Key begin = first ? state->low : state->base;
        const Key size = first ? state->high - begin : Key{1} << kDigitBits;
        clear_bins(block, shared);
        block.each([&](int t) {
#ifdef __CUDACC__
#pragma unroll 4
#endif
            for (std::int64_t i = block.index * kThreads + t; i < total; i += blocks * kThreads) {
                const Key above = Traits<float>::key(elements.value(i, all)) - begin;
                if (above < size) atomic_add(&shared.bins[first ? above >> kDigitBits : above], 1u);
            }
        });
        add_bins(block, shared, bins);
        if (!block.is_last(&state->arrived[first ? 1 : 2], blocks, &shared.is_last)) return;
        if constexpr (first) {
            choose_first_digit(block, shared.walk, state, bins, k - state->above());
        } else {
            const Walked at = walk<kThreads>(block, shared.walk, bins, kDigitBins, state->wanted);
            block.each([&](int t) {
                if (t != 0) return;
                state->last = state->base + static_cast<Key>(at.bin);
                state->first = state->last + 1;
                state->wanted -= at.above;
            });
        }
    }
};

// A warp for each tile counts its elements that are selected for sure, and those of which the first ones are; the last
// block says how many lie before each tile.
template <class Source>
struct Rank {
    static constexpr int kThreads = kPlaceThreads, kTiles = kThreads / 32;
    struct Shared {
        PlaceShared place;
        std::uint32_t is_last;
    };
    Elements<Source> elements;
    State* state;
    Ranks* ranks;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        const Key first = state->first, last = state->last;
        block.each_warp([&](const Warp& warp) {
            const std::int64_t tile = block.index * kTiles + warp.index;
            if (tile >= elements.tiles) return;
            const std::int64_t begin = elements.first(tile, all), count = elements.count(tile, all);
            typename Warp::template Each<std::uint32_t> both;
            warp.each([&](int lane) {
                std::uint32_t above = 0, reaching = 0;
#ifdef __CUDACC__
#pragma unroll 4
#endif
                for (std::int64_t j = lane; j < count; j += 32) {
                    const Key key = Traits<float>::key(elements.value(begin + j, all));
                    above += key >= first;
                    reaching += key >= last;
                }
                both[lane] = above | (reaching - above) << 16;
            });
            const std::uint32_t total = warp.sum(both);
            warp.each([&](int lane) {
                if (lane == 0) ranks[tile] = (total & 0xffffu) | static_cast<Ranks>(total >> 16) << 32;
            });
        });
        if (!block.is_last(&state->arrived[3], block.count, &shared.is_last)) return;
        place(block, shared.place, ranks, elements.tiles);
    }
};

// A warp hands out a tile's part of the result; with zeros in their place where it comes from all elements, and
// candidates that are not wanted going back where not.
template <class Source, class S>
struct Emit {
    static constexpr int kThreads = kTopkThreads;
    static constexpr int kRounds = 4;  // of 32 elements that are read at once
    struct Shared {};
    Elements<Source> elements;
    const Ranks* ranks;
    std::int64_t k;
    std::int32_t* indices;
    S* selected;

    struct Values {
        float v[kRounds];
    };

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each_warp([&](const Warp& warp) {
            const std::int64_t tile = block.index * kTopkWarps + warp.index;
            if (tile < elements.tiles) emit(warp, tile);
        });
    }

  private:
    HVD_COMPRESS_TILE void emit(const Warp& warp, std::int64_t tile) const {
        const bool all = elements.are_all();
        const Key first = elements.state->first, last = elements.state->last;
        const std::int64_t begin = elements.first(tile, all), count = elements.count(tile, all);
        const std::int64_t ties = elements.state->wanted;
        std::int64_t above = above_of(ranks[tile]), equal = equal_of(ranks[tile]);
        for (std::int64_t start = 0; start < count; start += 32 * kRounds) {
            typename Warp::template Each<Values> own;
            warp.each([&](int lane) {
                HVD_COMPRESS_UNROLL
                for (int round = 0; round < kRounds; ++round) {
                    const std::int64_t j = start + round * 32 + lane;
                    own[lane].v[round] = j < count ? elements.value(begin + j, all) : 0.0f;
                }
            });
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kRounds; ++round) {
                const std::int64_t from = start + round * 32;
                typename Warp::template Each<bool> is_above, is_equal;
                warp.each([&](int lane) {
                    const Key key = Traits<float>::key(own[lane].v[round]);
                    is_above[lane] = from + lane < count && key >= first;
                    is_equal[lane] = from + lane < count && key >= last && key < first;
                });
                const std::uint32_t sure = warp.ballot(is_above), tied = warp.ballot(is_equal);
                warp.each([&](int lane) {
                    if (from + lane >= count) return;
                    const std::uint32_t before = (std::uint32_t{1} << lane) - 1;
                    const std::int64_t same = equal + ones(tied & before), i = begin + from + lane;
                    const std::int64_t index = elements.index(i, all);
                    if (is_above[lane] || (is_equal[lane] && same < ties)) {
                        const std::int64_t place = above + ones(sure & before) + (same < ties ? same : ties);
                        if (place >= k) return;  // someone has written to the input meanwhile
                        indices[place] = static_cast<std::int32_t>(index);
                        selected[place] = from_float<S>(own[lane].v[round]);
                        if (all) elements.source.set(index, 0.0f);
                    } else if (!all) {
                        elements.source.set(index, own[lane].v[round]);
                    }
                });
                above += ones(sure);
                equal += ones(tied);
            }
        }
    }
};

}  // namespace hvd_compress::cuda
