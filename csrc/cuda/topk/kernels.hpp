// The steps of one selection of the k largest; launcher.cu says in which order. None of them waits for the host: what
// one step finds out lies in State, and a step that is not needed ends at once.
#pragma once

#include "../sample/kernels.hpp"

namespace hvd_compress::cuda {

constexpr int kTopkThreads = 256;
constexpr int kTopkRounds = 4;
constexpr int kTopkTile = kTopkThreads * kTopkRounds * kWide;
constexpr int kTopkWords = kTopkTile / 32;  // of a mask with a bit for each element of a tile
constexpr Key kUnreachable = 0x80000000u;   // above every key

constexpr int kDigitBits = 12;
constexpr int kDigitBins = 1 << kDigitBits;
constexpr int kFirstShift = 31 - kDigitBits;         // of a key of 31 bits
constexpr int kDigitShifts[] = {kFirstShift, 7, 0};  // the last digit has 7

struct State {
    Count found;          // candidates, those without room included
    std::int64_t wanted;  // how many are still wanted of the elements with this prefix; at the end: of the last ones
    Key low;              // candidates are the elements with at least this key
    Key prefix;           // the threshold's key, as far as it is known
    Key first, last;      // at the end all elements from `first` on are selected, and the first `wanted` from `last` on
    std::uint32_t again;  // whether candidates are to be collected from what the first pass has left
};

// A tile's candidates; how many of its elements lie above the threshold or are equal to it; and where its part of the
// result begins, and how many of the equal ones are in it.
struct TileRow {
    std::int64_t first, position;
    std::uint32_t count, above, equal, ties;
};

struct Candidates {
    std::int32_t* indices;
    float* values;
    std::int64_t capacity;
};

// Whether the candidates hold the k largest. If not, all elements are looked at.
HVD_COMPRESS_TILE bool are_enough(const State& state, std::int64_t k, std::int64_t capacity) {
    return state.found >= static_cast<Count>(k) && state.found <= static_cast<Count>(capacity);
}

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
            if (block.index == 0 && t == 0) *state = {0, k, kUnreachable, 0, kUnreachable, 0, 0};
        });
    }
};

struct TileShared {
    std::uint32_t mask[kTopkWords], before[kTopkWords];
    std::uint32_t scratch[32];
    std::int64_t first;
};

// Sets each tile's candidates apart, with zeros in their place: in the pass that corrects or, `again`, from its
// results.
template <class Source, bool again>
struct Collect {
    static constexpr int kThreads = kTopkThreads;
    using Shared = TileShared;
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
        if (again && state->again == 0) return;
        const Key low = state->low;
        for (std::int64_t tile = block.index; tile < tiles; tile += block.count) {
            collect(block, shared, tile, low);
            block.sync();
        }
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void collect(const B& block, Shared& shared, std::int64_t tile, Key low) const {
        const std::int64_t start = tile * kTopkTile;
        typename B::template Each<Values> kept;
        typename B::template Each<std::uint32_t> sums;
        block.each([&](int t) {
            if (t < kTopkWords) shared.mask[t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kTopkRounds; ++round) {
                if constexpr (again) {
                    source.read_left(at(start, round, t), kept[t].v[round]);
                } else {
                    source.read(at(start, round, t), kept[t].v[round]);
                }
            }
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kTopkRounds; ++round) {
                float left[kWide];
                std::uint32_t bits = 0;
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) {
                    const float value = kept[t].v[round][j];
                    const bool apart = Traits<float>::key(value) >= low;  // never beyond the end: low is not 0
                    bits |= static_cast<std::uint32_t>(apart) << j;
                    left[j] = apart ? 0.0f : value;
                }
                if constexpr (!again) source.write(at(start, round, t), left);
                if (bits != 0) atomic_or(&shared.mask[word(round, t)], bits << shift(t));
            }
        });
        block.sync();
        block.each([&](int t) { sums[t] = t < kTopkWords ? ones(shared.mask[t]) : 0; });
        const std::uint32_t total = block.exclusive_sum(sums, shared.scratch);
        block.each([&](int t) {
            if (t < kTopkWords) shared.before[t] = sums[t];
            if (t != 0) return;
            shared.first = static_cast<std::int64_t>(atomic_add(&state->found, static_cast<Count>(total)));
            const bool fits = shared.first + total <= found.capacity;
            rows[tile] = {shared.first, 0, fits ? total : 0, 0, 0, 0};
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
                    const std::int64_t i = at(start, round, t) + j;
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

    // Element, word and bit of what a thread looks at: neighbouring threads have neighbouring elements.
    static HVD_COMPRESS_TILE std::int64_t at(std::int64_t start, int round, int t) {
        return start + (round * kTopkThreads + t) * kWide;
    }
    static HVD_COMPRESS_TILE int word(int round, int t) { return (round * kTopkThreads + t) * kWide / 32; }
    static HVD_COMPRESS_TILE int shift(int t) { return t * kWide % 32; }
};

// Bins of the keys' first digit, as a block counts them.
struct DigitShared {
    std::uint32_t bins[kDigitBins];
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

// The first of the radix selection's two passes: corrects, and counts all elements by their first digit. Where that is
// done, after the bracket has missed the k largest, its candidates go back instead, and what is left is counted.
template <class Source, bool again>
struct CountAll {
    static constexpr int kThreads = kTopkThreads;
    using Shared = DigitShared;
    Source source;
    const State* state;
    const TileRow* rows;
    Candidates found;
    std::int64_t tiles, n, k;
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (again && are_enough(*state, k, found.capacity)) return;
        clear_bins(block, shared);
        for (std::int64_t tile = block.index; tile < tiles; tile += block.count) {
            if constexpr (again) {
                const TileRow row = rows[tile];
                block.each([&](int t) {
                    for (std::uint32_t j = t; j < row.count; j += kThreads) {
                        source.set(found.indices[row.first + j], found.values[row.first + j]);
                    }
                });
                block.sync();
            }
            block.each([&](int t) {
                for (int round = 0; round < kTopkRounds; ++round) {
                    const std::int64_t i = tile * kTopkTile + (round * kThreads + t) * kWide;
                    float v[kWide];
                    if constexpr (again) {
                        source.read_left(i, v);
                    } else {
                        source.read(i, v);
                        source.write(i, v);
                    }
                    HVD_COMPRESS_UNROLL
                    for (int j = 0; j < kWide; ++j) {
                        if (i + j < n) atomic_add(&shared.bins[Traits<float>::key(v[j]) >> kFirstShift], 1u);
                    }
                }
            });
        }
        add_bins(block, shared, bins);
    }
};

// From the counts of all elements: where the bin begins that holds the k-th largest. From there on, they are collected
// again; not so if there is no room for as many, or if it is the bin of zeros, which reaches beyond the last element.
struct ChooseBin {
    static constexpr int kThreads = kWalkThreads;
    using Shared = WalkShared;
    State* state;
    const std::uint32_t* bins;
    std::int64_t k, capacity;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (are_enough(*state, k, capacity)) return;
        const Walked at = walk(block, shared, bins, kDigitBins, k);
        block.each([&](int t) {
            if (t != 0) return;
            state->found = 0;
            const bool fits = at.bin > 0 && at.above + bins[at.bin] <= capacity;
            state->low = fits ? static_cast<Key>(at.bin) << kFirstShift : kUnreachable;
            state->again = 1;
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
    std::int64_t n, k;

    HVD_COMPRESS_TILE bool are_all() const { return !are_enough(*state, k, found.capacity); }
    HVD_COMPRESS_TILE std::int64_t count(std::int64_t tile, bool all) const {
        if (!all) return rows[tile].count;
        return n - tile * kTopkTile < kTopkTile ? n - tile * kTopkTile : kTopkTile;
    }
    HVD_COMPRESS_TILE float value(std::int64_t tile, std::int64_t j, bool all) const {
        return all ? source.left(tile * kTopkTile + j) : found.values[rows[tile].first + j];
    }
    HVD_COMPRESS_TILE std::int64_t index(std::int64_t tile, std::int64_t j, bool all) const {
        return all ? tile * kTopkTile + j : found.indices[rows[tile].first + j];
    }
};

// Counts the elements whose upper digits are those of the threshold by their next digit.
template <class Source>
struct CountDigit {
    static constexpr int kThreads = kTopkThreads;
    using Shared = DigitShared;
    Elements<Source> elements;
    int shift, bits;
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        const Key prefix = elements.state->prefix;
        clear_bins(block, shared);
        block.each([&](int t) {
            // Candidates lie together, whatever tile they are from.
            const std::int64_t total = all ? elements.n : static_cast<std::int64_t>(elements.state->found);
            for (std::int64_t i = block.index * kThreads + t; i < total; i += block.count * kThreads) {
                const Key key = Traits<float>::key(all ? elements.source.left(i) : elements.found.values[i]);
                if (static_cast<std::uint64_t>(key) >> (shift + bits) != prefix) continue;
                atomic_add(&shared.bins[key >> shift & ((Key{1} << bits) - 1)], 1u);
            }
        });
        add_bins(block, shared, bins);
    }
};

struct ChooseDigit {
    static constexpr int kThreads = kWalkThreads;
    using Shared = WalkShared;
    State* state;
    const std::uint32_t* bins;
    int bits;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Walked found = walk(block, shared, bins, kDigitBins, state->wanted);
        block.each([&](int t) {
            if (t != 0) return;
            state->prefix = state->prefix << bits | static_cast<Key>(found.bin);
            state->wanted -= found.above;
            state->last = state->prefix;  // both mean something once the last digit is known
            state->first = state->prefix + 1;
        });
    }
};

// Two counts in one word: of elements that are selected for sure, and of those of which the first ones are.
HVD_COMPRESS_TILE std::uint32_t rank_of(Key key, const State& state) {
    if (key >= state.first) return 1;
    return key >= state.last ? 1u << 16 : 0;
}

template <class Source>
struct Rank {
    static constexpr int kThreads = kTopkThreads;
    struct Shared {
        std::uint32_t scratch[32];
    };
    Elements<Source> elements;
    TileRow* rows;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        const State state = *elements.state;
        const std::int64_t count = elements.count(block.index, all);
        typename B::template Each<std::uint32_t> both;
        block.each([&](int t) {
            both[t] = 0;
            for (std::int64_t j = t; j < count; j += kThreads) {
                both[t] += rank_of(Traits<float>::key(elements.value(block.index, j, all)), state);
            }
        });
        const std::uint32_t total = block.exclusive_sum(both, shared.scratch);
        block.each([&](int t) {
            if (t != 0) return;
            rows[block.index].above = total & 0xffffu;
            rows[block.index].equal = total >> 16;
        });
    }
};

// Where each tile's part of the result begins: one block, and each thread for as many tiles.
struct PlaceTiles {
    static constexpr int kThreads = 1024;
    struct Shared {
        Count scratch[32];
    };
    const State* state;
    TileRow* rows;
    std::int64_t tiles;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t each = (tiles + kThreads - 1) / kThreads, ties = state->wanted;
        typename B::template Each<Count> above, equal;
        block.each([&](int t) {
            above[t] = equal[t] = 0;
            for (std::int64_t tile = t * each; tile < (t + 1) * each && tile < tiles; ++tile) {
                above[t] += rows[tile].above;
                equal[t] += rows[tile].equal;
            }
        });
        block.exclusive_sum(above, shared.scratch);
        block.exclusive_sum(equal, shared.scratch);
        block.each([&](int t) {
            std::int64_t more = static_cast<std::int64_t>(above[t]), same = static_cast<std::int64_t>(equal[t]);
            for (std::int64_t tile = t * each; tile < (t + 1) * each && tile < tiles; ++tile) {
                TileRow& row = rows[tile];
                row.position = more + (same < ties ? same : ties);
                const std::int64_t left = same < ties ? ties - same : 0;
                row.ties = static_cast<std::uint32_t>(left < row.equal ? left : row.equal);
                more += row.above;
                same += row.equal;
            }
        });
    }
};

// Hands out a tile's part of the result; with zeros in their place where it comes from all elements, and candidates
// that are not wanted going back where not.
template <class Source, class S>
struct Emit {
    static constexpr int kThreads = kTopkThreads;
    struct Shared {
        std::uint32_t scratch[32];
    };
    Elements<Source> elements;
    std::int32_t* indices;
    S* selected;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const bool all = elements.are_all();
        const State state = *elements.state;
        const TileRow row = elements.rows[block.index];
        const std::int64_t count = elements.count(block.index, all);
        std::uint32_t above_before = 0, equal_before = 0;
        for (std::int64_t start = 0; start < count; start += kThreads) {
            typename B::template Each<std::uint32_t> both;
            block.each([&](int t) {
                const std::int64_t j = start + t;
                both[t] = j < count ? rank_of(Traits<float>::key(elements.value(block.index, j, all)), state) : 0;
            });
            const std::uint32_t total = block.exclusive_sum(both, shared.scratch);
            block.each([&](int t) {
                const std::int64_t j = start + t;
                if (j >= count) return;
                const float value = elements.value(block.index, j, all);
                const std::uint32_t rank = rank_of(Traits<float>::key(value), state);
                const std::uint32_t above = above_before + (both[t] & 0xffffu), equal = equal_before + (both[t] >> 16);
                const std::int64_t index = elements.index(block.index, j, all);
                if (rank == 1 || (rank != 0 && equal < row.ties)) {
                    const std::int64_t place = row.position + above + (equal < row.ties ? equal : row.ties);
                    indices[place] = static_cast<std::int32_t>(index);
                    selected[place] = from_float<S>(value);
                    if (all) elements.source.set(index, 0.0f);
                } else if (!all) {
                    elements.source.set(index, value);
                }
            });
            above_before += total & 0xffffu;
            equal_before += total >> 16;
        }
    }
};

}  // namespace hvd_compress::cuda
