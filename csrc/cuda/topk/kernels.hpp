// The steps of one selection of the k largest; launcher.cu says in which order. None of them waits for the host: what
// one step finds out lies in State, and a step that is not needed ends at once.
//
// The key of the k-th largest is found by two digits of 12 bits of how far it lies above the beginning of a range of at
// most 2^24 keys. Candidates are counted by the first digit as they are collected.
#pragma once

#include "../places.hpp"
#include "../sample/kernels.hpp"

namespace hvd_compress::cuda {

constexpr int kTopkThreads = 256;
constexpr int kTopkRounds = 4;
using TopkTile = Tile<kTopkThreads, kTopkRounds>;
constexpr int kTopkWords = TopkTile::kNumel / 32;  // of a mask with a bit for each element of a tile
constexpr int kTopkWarps = kTopkThreads / 32;      // and tiles of a block, where a warp has one
constexpr Key kUnreachable = 0x80000000u;          // above every key

constexpr int kDigitBits = 12;
constexpr int kDigitBins = 1 << kDigitBits;
constexpr int kBinShift = 31 - kDigitBits;                // of a key of 31 bits: what elements are counted by at first
constexpr Key kWidestRange = Key{1} << (2 * kDigitBits);  // that two digits tell apart

// Where the k-th largest is looked for: among candidates of the sampled range, among those of a bin of all elements, or
// among all elements, since that bin has too many.
enum class Stage : std::uint32_t { kSampled, kCollected, kAll };

struct State {
    Count found;  // candidates, those without room included; from bit 32 on those of them above the range
    std::int64_t
        wanted;       // how many are still wanted of those that the digits so far leave; at the end: of the last ones
    Key low, high;    // candidates are all elements from `low` on; the range is low..high - 1
    Key base;         // the first key that the first digit leaves
    Key first, last;  // at the end all elements from `first` on are selected, and the first `wanted` from `last` on
    Stage stage;
    std::uint32_t arrived[5];  // blocks of the launches whose last one goes on alone

    HVD_COMPRESS_TILE std::int64_t candidates() const { return static_cast<std::int64_t>(found & 0xffffffffu); }
    HVD_COMPRESS_TILE std::int64_t above() const { return static_cast<std::int64_t>(found >> 32); }
};

HVD_COMPRESS_TILE State first_state(std::int64_t k) {
    return {0, k, kUnreachable, kUnreachable, 0, kUnreachable, 0, Stage::kSampled, {}};
}

// A tile's candidates.
struct TileRow {
    std::uint32_t first, count;
};

// How many of a tile's elements lie above the threshold, and from bit 32 on how many are equal to it; then how many of
// the tiles before.
using Ranks = Count;
HVD_COMPRESS_TILE std::uint32_t above_of(Ranks ranks) { return static_cast<std::uint32_t>(ranks & 0xffffffffu); }
HVD_COMPRESS_TILE std::uint32_t equal_of(Ranks ranks) { return static_cast<std::uint32_t>(ranks >> 32); }

struct Candidates {
    std::int32_t* indices;
    float* values;
    std::int64_t capacity;
};

// Whether the candidates of the sampled range hold the k largest, and the range the k-th. If not, all elements are
// looked at.
HVD_COMPRESS_TILE bool are_enough(const State& state, std::int64_t k, std::int64_t capacity) {
    return state.candidates() >= k && state.candidates() <= capacity && state.above() < k;
}

// Bins of the three counts of a selection.
struct DigitBins {
    std::uint32_t *all, *first, *second;
};

struct Begin {
    static constexpr int kThreads = 1024;
    struct Shared {};
    State* state;
    std::uint32_t *bins, *sample;
    std::int64_t bin_count, sample_count, k;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            for (std::int64_t i = block.index * kThreads + t; i < bin_count; i += block.count * kThreads) bins[i] = 0;
            for (std::int64_t i = block.index * kThreads + t; i < sample_count; i += block.count * kThreads)
                sample[i] = 0;
            if (block.index == 0 && t == 0) *state = first_state(k);
        });
    }
};

// The range of keys in which the k-th largest probably lies: from the bin of the sampled element of rank `upper` to
// that of rank `lower`, which is below 1 where there is none.
struct ChooseRange {
    static constexpr int kThreads = kWalkThreads;
    using Shared = WalkShared;
    State* state;
    const std::uint32_t* sample;
    std::int64_t upper, lower;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Walked least = walk<kThreads>(block, shared, sample, kSampleBins, upper);
        block.sync();
        const Walked most = walk<kThreads>(block, shared, sample, kSampleBins, lower);
        block.each([&](int t) {
            if (t != 0 || least.bin <= 0) return;
            const Key low = static_cast<Key>(least.bin) << kSampleShift;
            const Key end = most.bin < 0 || lower < 1 ? kUnreachable : static_cast<Key>(most.bin + 1) << kSampleShift;
            state->low = low;
            state->high = end - low < kWidestRange ? end : low + kWidestRange;
        });
    }
};

// Bins as a block counts them, and what its last one needs to walk them.
struct DigitShared {
    std::uint32_t bins[kDigitBins];
    WalkShared walk;
    std::uint32_t is_last;
};

template <class B>
HVD_COMPRESS_TILE void clear_bins(const B& block, DigitShared& shared) {
    block.each([&](int t) {
        for (int bin = t; bin < kDigitBins; bin += kTopkThreads) shared.bins[bin] = 0;
    });
    block.sync();
}

template <class B>
HVD_COMPRESS_TILE void add_bins(const B& block, const DigitShared& shared, std::uint32_t* bins) {
    block.sync();
    block.each([&](int t) {
        for (int bin = t; bin < kDigitBins; bin += kTopkThreads) {
            if (shared.bins[bin] != 0) atomic_add(&bins[bin], shared.bins[bin]);
        }
    });
}

// From the counts of the range by the first digit: which one that of the k-th largest is.
template <class B>
HVD_COMPRESS_TILE void choose_first_digit(const B& block, WalkShared& shared, State* state, const std::uint32_t* bins,
                                          std::int64_t wanted) {
    const Walked at = walk<kTopkThreads>(block, shared, bins, kDigitBins, wanted);
    block.each([&](int t) {
        if (t != 0) return;
        state->base = state->low + (static_cast<Key>(at.bin) << kDigitBits);
        state->wanted = wanted - at.above;
    });
}

struct CollectShared {
    std::uint32_t mask[kTopkWords], before[kTopkWords];
    std::uint32_t scratch[32];
    std::int64_t first;
    std::uint32_t above;
    WalkShared walk;
    std::uint32_t is_last;
};

// Sets each tile's candidates apart, with zeros in their place: in the pass that corrects or, `again`, from its
// results.
template <class Source, bool again>
struct Collect {
    static constexpr int kThreads = kTopkThreads, kResidentBlocks = 4;
    using Shared = CollectShared;
    Source source;
    State* state;
    TileRow* rows;
    Candidates found;
    std::uint32_t* bins;  // of the first digit
    std::int64_t tiles, k;

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
        if constexpr (again) {
            if (!block.is_last(&state->arrived[1], block.count, &shared.is_last)) return;
            choose_first_digit(block, shared.walk, state, bins, k - state->above());
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
                if (key >= high) {
                    ++above;
                } else {
                    atomic_add(&bins[(key - low) >> kDigitBits], 1u);
                }
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

// The first of the radix selection's two passes: corrects, and counts all elements by their keys' first bits. Where
// that is done, after the sampled range has missed the k-th largest, candidates go back instead, and what is left is
// counted; where it has not, one block finds the first digit.
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
    DigitBins bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if constexpr (again) {
            if (are_enough(*state, k, found.capacity)) {
                if (block.index == 0) choose_first_digit(block, shared.walk, state, bins.first, k - state->above());
                return;
            }
        }
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
        add_bins(block, shared, bins.all);
        if (block.is_last(&state->arrived[0], block.count, &shared.is_last)) choose_bin(block, shared);
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void choose_bin(const B& block, Shared& shared) const {
        const Walked at = walk<kThreads>(block, shared.walk, bins.all, kDigitBins, k);
        block.each([&](int t) {
            for (int bin = t; bin < kDigitBins; bin += kThreads) bins.first[bin] = 0;  // of the sampled range
            if (t != 0 || k == 0) return;
            const std::int64_t candidates = at.above + bins.all[at.bin];
            const bool fits = at.bin > 0 && candidates <= found.capacity;
            state->found = fits ? 0 : static_cast<Count>(at.above) << 32;
            state->low = static_cast<Key>(at.bin) << kBinShift;
            state->high = static_cast<Key>(at.bin + 1) << kBinShift;
            state->stage = fits ? Stage::kCollected : Stage::kAll;
        });
    }
};

// What a tile's part of the selection is made from: its candidates or, without enough of them, all its elements.
template <class Source>
struct Elements {
    Source source;
    const State* state;
    const TileRow* rows;
    Candidates found;
    std::int64_t n, tiles;

    HVD_COMPRESS_TILE bool are_all() const { return state->stage == Stage::kAll; }
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

// Counts the elements of the range by their first digit, where all are looked at, or those with the first digit by the
// second; the last block chooses.
template <class Source, bool first>
struct CountDigit {
    static constexpr int kThreads = kTopkThreads;
    static constexpr std::int64_t kEach = 4 * kThreads;  // candidates of a block, at least
    using Shared = DigitShared;
    Elements<Source> elements;
    State* state;
    std::uint32_t* bins;
    std::int64_t k;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        if (first && !all) return;
        // Candidates lie together, whatever tile they are from.
        const std::int64_t total = all ? elements.n : state->candidates(), parts = (total + kEach - 1) / kEach;
        const std::int64_t blocks = parts < block.count ? (parts > 0 ? parts : 1) : block.count;
        if (block.index >= blocks) return;
        const Key begin = first ? state->low : state->base;
        const Key size = first ? state->high - begin : Key{1} << kDigitBits;
        clear_bins(block, shared);
        block.each([&](int t) {
            for (std::int64_t i = block.index * kThreads + t; i < total; i += blocks * kThreads) {
                const Key above = Traits<float>::key(elements.value(i, all)) - begin;
                if (above < size) atomic_add(&shared.bins[first ? above >> kDigitBits : above], 1u);
            }
        });
        add_bins(block, shared, bins);
        if (!block.is_last(&state->arrived[first ? 2 : 3], blocks, &shared.is_last)) return;
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
        if (!block.is_last(&state->arrived[4], block.count, &shared.is_last)) return;
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
