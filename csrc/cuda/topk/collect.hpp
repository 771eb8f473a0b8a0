// The passes over memory: what may be among the k largest is set apart; or all is counted, where that has failed.
#pragma once

#include "digits.hpp"

namespace hvd_compress::cuda {

struct CollectShared {
    std::uint32_t mask[kTopkWords], before[kTopkWords];
    std::uint32_t scratch[32];
    std::int64_t first;
    std::uint32_t above;
};

// Sets each tile's candidates apart, with zeros in their place: in the pass that corrects or, `again`, from its
// results.
template <class Source, bool again>
struct Collect {
    // Four would spill registers of 16-bit residuals on sm_80.
    static constexpr int kThreads = kTopkThreads, kResidentBlocks = !again && Source::kIsNarrow ? 3 : 4;
    using Shared = CollectShared;
    Source source;
    State* state;
    TileRow* rows;
    Candidates found;
    std::int64_t tiles;

    struct Values {
        float v[kTopkRounds][kWide];
    };

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (again && state->stage != Stage::kCollected) return;
        const Key low = state->low, high = state->high;
        for (std::int64_t tile = block.index; tile < tiles; tile += block.count) {
            collect(block, shared, tile, low, high);
            block.sync();
        }
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void collect(const B& block, Shared& shared, std::int64_t index, Key low, Key high) const {
        const TopkTile tile{index};
        typename B::template Each<Values> kept;
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            if (t < kTopkWords) shared.mask[t] = 0;
            if (t == 0) shared.above = 0;
        });
        block.sync();
        block.each([&](int t) {
            if constexpr (again) {
                source.read_left(tile, t, kept[t].v);
            } else {
                source.read(tile, t, kept[t].v);
            }
            std::uint32_t apart = 0, above = 0;  // a bit for each element; how many lie above the range
            for_each_value(kept[t].v, [&](float value, int round, int j) {
                const Key key = Traits<float>::key(value);
                if (key < low) return;  // as is what lies beyond the end: low is not 0
                apart |= std::uint32_t{1} << (round * kWide + j);
                above += key >= high;
            });
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kTopkRounds; ++round) {
                const std::uint32_t bits = apart >> round * kWide & ((1u << kWide) - 1);
                if (bits != 0) atomic_or(&shared.mask[word(round, t)], bits << shift(t));
            }
            if constexpr (!again) {
                float left[kTopkRounds][kWide];
                for_each_value(left, [&](float& value, int round, int j) {
                    value = (apart >> (round * kWide + j) & 1u) != 0 ? 0.0f : kept[t].v[round][j];
                });
                source.write(tile, t, left);
            }
            if (above != 0) atomic_add(&shared.above, above);
        });
        block.sync();
        block.each([&](int t) { sums[t] = t < kTopkWords ? ones(shared.mask[t]) : 0; });
        const std::uint32_t total = block.exclusive_sum(sums, shared.scratch);
        block.each([&](int t) {
            if (t < kTopkWords) shared.before[t] = sums[t];
            if (t != 0) return;
            const Count own = total | static_cast<Count>(shared.above) << 32;
            shared.first = static_cast<std::int64_t>(atomic_add(&state->found, own) & 0xffffffffu);
            const bool fits = shared.first + total <= found.capacity;
            rows[index] = {static_cast<std::uint32_t>(shared.first), fits ? total : 0};
        });
        block.sync();
        const std::int64_t first = shared.first;
        const bool fits = first + total <= found.capacity;
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kTopkRounds; ++round) {
                const std::uint32_t mask = shared.mask[word(round, t)];
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const int bit = shift(t) + j;
                    if ((mask >> bit & 1u) == 0) continue;
                    const std::int64_t i = tile.at(round, t) + j;
                    // It is there only where it has not been written yet: what is collected goes, what has no room
                    // comes back.
                    if (fits == again) source.set(i, again ? 0.0f : kept[t].v[round][j]);
                    if (!fits) continue;
                    const std::int64_t place =
                        first + shared.before[word(round, t)] + ones(mask & ((std::uint32_t{1} << bit) - 1));
                    found.indices[place] = static_cast<std::int32_t>(i);
                    found.values[place] = kept[t].v[round][j];
                }
            }
        });
    }

    static HVD_COMPRESS_TILE int word(int round, int t) { return TopkTile::place(round, t) / 32; }
    static HVD_COMPRESS_TILE int shift(int t) { return t * kWide % 32; }
};

// The first of the radix selection's two passes: corrects, and counts all elements by their keys' first bits. `again`,
// after the sampled range has missed the k-th largest, candidates go back instead, and what is left is counted.
//
// From the counts: where the bin begins that holds the k-th largest. From there on candidates are collected; not so if
// there is no room for as many, or if it is the bin of zeros, which reaches beyond the last element.
template <class Source, bool again>
struct CountAll {
    static constexpr int kThreads = kTopkThreads;
    using Shared = DigitShared;
    Source source;
    State* state;
    const TileRow* rows;
    Candidates found;
    std::int64_t tiles, n, k;
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (again && are_enough(*state, k, found.capacity)) return;
        clear_bins(block, shared);
        typename B::template Each<std::uint32_t> zeros;  // there may be many, which would wait for each other
        block.each([&](int t) { zeros[t] = 0; });
        for (std::int64_t index = block.index; index < tiles; index += block.count) {
            const TopkTile tile{index};
            if constexpr (again) {
                const TileRow row = rows[index];
                block.each([&](int t) {
                    for (std::uint32_t j = t; j < row.count; j += kThreads) {
                        source.set(found.indices[row.first + j], found.values[row.first + j]);
                    }
                });
                block.sync();
            }
            block.each([&](int t) {
                float v[kTopkRounds][kWide];
                if constexpr (again) {
                    source.read_left(tile, t, v);
                } else {
                    source.read(tile, t, v);
                    source.write(tile, t, v);
                }
                for_each_value(v, [&](float x, int round, int j) {
                    if (tile.at(round, t) + j >= n) return;
                    const Key bin = Traits<float>::key(x) >> kBinShift;
                    if (bin == 0) {
                        ++zeros[t];
                    } else {
                        atomic_add(&shared.bins[bin], 1u);
                    }
                });
            });
        }
        block.each([&](int t) {
            if (zeros[t] != 0) atomic_add(&shared.bins[0], zeros[t]);
        });
        add_bins(block, shared, bins);
        if (block.is_last(&state->arrived[0], block.count, &shared.is_last)) choose_bin(block, shared);
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void choose_bin(const B& block, Shared& shared) const {
        const Walked at = walk<kThreads>(block, shared.walk, bins, kDigitBins, k);
        block.each([&](int t) {
            if (t != 0 || k == 0) return;
            const std::int64_t candidates = at.above + bins[at.bin];
            const bool fits = at.bin > 0 && candidates <= found.capacity;
            state->found = fits ? 0 : static_cast<Count>(at.above) << 32;
            state->low = static_cast<Key>(at.bin) << kBinShift;
            state->high = static_cast<Key>(at.bin + 1) << kBinShift;
            state->stage = fits ? Stage::kCollected : Stage::kAll;
        });
    }
};

}  // namespace hvd_compress::cuda
