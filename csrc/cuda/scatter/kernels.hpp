// Reading, taking and adding values at lists of indices.
#pragma once

#include <type_traits>

#include "../tile.hpp"
#include "hvd_compress/scatter.hpp"

namespace hvd_compress::cuda {

constexpr std::int64_t kListsAtOnce = 64;  // that one launch is told of

struct Lists {
    SparseList list[kListsAtOnce];
    std::int64_t count;
    std::int64_t first;  // number of the first among all lists
};

HVD_COMPRESS_TILE void note(const Fault& fault, std::int64_t list, std::int64_t position) {
    const std::int64_t most = 0xffff, number = list < most ? list : most;
    atomic_min(fault.first,
               static_cast<Count>(fault.tag) << 48 | static_cast<Count>(number) << 32 | static_cast<Count>(position));
}

// Whether the j-th index lies within 0..n-1 and, where it has to, above the one before.
HVD_COMPRESS_TILE bool is_good(const std::int32_t* indices, std::int64_t j, std::int64_t n, bool ascending) {
    const std::int64_t index = indices[j];
    return index >= 0 && index < n && !(ascending && j > 0 && indices[j - 1] >= index);
}

// The positions of the first index that is not below `limit`, for two limits. A warp tries 32 positions at once: each
// try waits for memory, and four are enough for a million.
struct Searched {
    std::uint32_t low[2];
};
HVD_COMPRESS_TILE Searched lower_bounds(const Warp& warp, const SparseList& list, const std::int64_t (&limits)[2]) {
    const auto count = static_cast<std::uint32_t>(list.count);
    Searched at{};
    std::uint32_t high[2] = {count, count};
    while (at.low[0] < high[0] || at.low[1] < high[1]) {
        std::uint32_t step[2];
        typename Warp::template Each<bool> below[2];
        HVD_COMPRESS_UNROLL
        for (int which = 0; which < 2; ++which) {
            step[which] = (high[which] - at.low[which] + 32) / 33;
            warp.each([&](int lane) {
                const std::uint32_t tried = at.low[which] + (lane + 1) * step[which] - 1;
                below[which][lane] = tried < high[which] && list.indices[tried] < limits[which];
            });
        }
        HVD_COMPRESS_UNROLL
        for (int which = 0; which < 2; ++which) {
            const auto found = static_cast<std::uint32_t>(ones(warp.ballot(below[which])));
            if (step[which] == 0) continue;  // nothing is left
            at.low[which] += found * step[which];
            const std::uint32_t next = at.low[which] + step[which] - 1;  // was tried, unless all 32 are below
            if (found < 32 && next < high[which]) high[which] = next;
        }
    }
    return at;
}

// The position of the first index from `begin` on that is not below `limit`. Those that are near are tried first:
// `near` of them, then eight times as many.
HVD_COMPRESS_TILE std::uint32_t lower_bound_from(const Warp& warp, const SparseList& list, std::uint32_t begin,
                                                 std::uint32_t near, std::int64_t limit) {
    const auto count = static_cast<std::uint32_t>(list.count);
    std::uint32_t low = begin, high = begin;
    bool is_beyond = false;  // whether the index at `high` was tried, and is not below
    while (!is_beyond && high < count) {
        high = near < count - low ? low + near : count;
        near *= 8;
        while (low < high) {
            const std::uint32_t step = (high - low + 32) / 33;
            typename Warp::template Each<bool> below;
            warp.each([&](int lane) {
                const std::uint32_t tried = low + (lane + 1) * step - 1;
                below[lane] = tried < high && list.indices[tried] < limit;
            });
            const auto found = static_cast<std::uint32_t>(ones(warp.ballot(below)));
            low += found * step;
            const std::uint32_t next = low + step - 1;
            if (found == 32 || next >= high) continue;
            high = next;
            is_beyond = true;
        }
    }
    return low;
}

// A tile of the output is kept near while all lists add to it, one after the other.
//
// A block has neighbouring tiles. It searches for the beginning of the first one's part of each list and for the end of
// the last one's, as its neighbours do, and finds ends between from where the tile before has ended. If these parts lie
// end to end and each index of a part is good, so is the list; where they do not, as in a list that is not sorted, the
// tile looks at all of it.
template <class V, class T>
struct AddLists {
    static constexpr int kThreads = 256, kResidentBlocks = 4;
    static constexpr int kRounds = 8;
    static constexpr int kAhead = 8;  // lists whose first entries are on their way before the first is added
    using Elements = Tile<kThreads, kRounds>;
    static constexpr int kTile = Elements::kNumel;
    struct Shared {
        float sums[kTile];
        std::uint32_t bounds[2]
                            [kListsAtOnce];  // where each list begins in this tile and in the next one; they take turns
        std::uint32_t last[kListsAtOnce];    // and ends in the block's last one
    };
    Lists lists;
    T* out;
    std::int64_t n;
    float scale;
    bool clear, aligned;
    Fault fault;

    struct Entry {
        std::int32_t index, before;  // that of the entry before, -1 of the first
        V value;
    };
    struct Read {
        Entry of[kAhead];
    };
    // A list's part in this tile, or all of it where it does not ascend: then nothing is added.
    struct Part {
        std::uint32_t begin, end;
        bool apart;
    };

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t tiles = n > kTile ? (n + kTile - 1) / kTile : 1;
        const std::int64_t first = tiles * block.index / block.count, last = tiles * (block.index + 1) / block.count;
        block.each_warp([&](const Warp& warp) {
            for (std::int64_t list = warp.index; list < lists.count; list += kThreads / 32) {
                const std::int64_t end = Elements{last}.start();
                const Searched at = lower_bounds(warp, lists.list[list], {Elements{first}.start(), end < n ? end : n});
                warp.each([&](int lane) {
                    if (lane == 0) shared.bounds[first % 2][list] = at.low[0];
                    if (lane == 1) shared.last[list] = at.low[1];
                });
            }
        });
        block.sync();
        for (std::int64_t index = first; index < last; ++index) {
            add(block, shared, Elements{index}, index + 1 == last);
            block.sync();
        }
    }

  private:
    template <class B>
    HVD_COMPRESS_TILE void add(const B& block, Shared& shared, const Elements& tile, bool is_last) const {
        const std::int64_t start = tile.start(), stop = start + kTile < n ? start + kTile : n;
        block.each_warp([&](const Warp& warp) {
            for (std::int64_t list = warp.index; list < lists.count; list += kThreads / 32) {
                const std::uint32_t end =
                    is_last ? shared.last[list]
                            : lower_bound_from(warp, lists.list[list], shared.bounds[tile.index % 2][list],
                                               near(lists.list[list]), stop);
                warp.each([&](int lane) {
                    if (lane == 0) shared.bounds[(tile.index + 1) % 2][list] = end;
                });
            }
        });
        block.each([&](int t) {
            float v[kRounds][kWide] = {};
            if (!clear)
                in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(out, tile, t, n, v); });
            for_each_value(v, [&](float x, int round, int j) { shared.sums[Elements::place(round, t) + j] = x; });
        });
        block.sync();
        for (std::int64_t list = 0; list < lists.count; list += kAhead) add(block, shared, list, start, stop);
        block.each([&](int t) {
            in_tile(tile, n, aligned, [&](auto whole) {
                HVD_COMPRESS_UNROLL
                for (int round = 0; round < kRounds; ++round) {
                    float v[kWide];
                    HVD_COMPRESS_UNROLL
                    for (int j = 0; j < kWide; ++j) v[j] = shared.sums[Elements::place(round, t) + j];
                    store<decltype(whole)::value>(out, tile.at(round, t), n, v);
                }
            });
        });
    }

    // Twice the entries of a tile, if all have as many: one try of 32 then mostly leaves a few.
    HVD_COMPRESS_TILE std::uint32_t near(const SparseList& list) const {
        return 32 + static_cast<std::uint32_t>(2 * list.count * kTile / (n > 0 ? n : 1));
    }

    // The lists from `first` on, one after the other. All that a thread adds first of each is on its way before any of
    // it is looked at: a branch between would have each list wait for the one before.
    template <class B>
    HVD_COMPRESS_TILE void add(const B& block, Shared& shared, std::int64_t first, std::int64_t start,
                               std::int64_t stop) const {
        typename B::template Each<Read> ahead;
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int which = 0; which < kAhead; ++which) {
                const bool is_list = first + which < lists.count;
                const Part part = is_list ? part_of(shared, first + which, start, stop) : Part{};
                ahead[t].of[which] = read(is_list ? first + which : 0, part.begin + t, part.end);
            }
        });
        HVD_COMPRESS_UNROLL
        for (int which = 0; which < kAhead; ++which) {
            if (first + which >= lists.count) break;
            const Part part = part_of(shared, first + which, start, stop);
            block.each([&](int t) {
                add(shared, first + which, part, part.begin + t, start, ahead[t].of[which]);
                for (std::uint32_t j = part.begin + kThreads + t; j < part.end; j += kThreads) {
                    add(shared, first + which, part, j, start, read(first + which, j, part.end));
                }
            });
            block.sync();
        }
    }

    HVD_COMPRESS_TILE void add(Shared& shared, std::int64_t number, const Part& part, std::uint32_t j,
                               std::int64_t start, const Entry& entry) const {
        if (j >= part.end) return;
        if (entry.index < 0 || entry.index >= n || entry.before >= entry.index) {
            note(fault, lists.first + number, j);
            return;
        }
        const std::int64_t place = entry.index - start;
        if (part.apart || place < 0 || place >= kTile) return;
        shared.sums[place] = to_float(from_float<T>(shared.sums[place] + scale * to_float(entry.value)));
    }

    // The j-th entry of a list; of none where j is not below `end`.
    HVD_COMPRESS_TILE Entry read(std::int64_t number, std::uint32_t j, std::uint32_t end) const {
        const SparseList& list = lists.list[number];
        const bool is_there = j < end;
        return {is_there ? list.indices[j] : 0, is_there && j > 0 ? list.indices[j - 1] : -1,
                is_there ? static_cast<const V*>(list.values)[j] : V{}};
    }

    HVD_COMPRESS_TILE Part part_of(const Shared& shared, std::int64_t list, std::int64_t start,
                                   std::int64_t stop) const {
        const auto count = static_cast<std::uint32_t>(lists.list[list].count);
        const auto side = static_cast<int>(start / kTile % 2);
        const std::uint32_t begin = shared.bounds[side][list], end = shared.bounds[1 - side][list];
        const bool apart = begin > end || (start == 0 && begin != 0) || (stop == n && end != count);
        return apart ? Part{0, count, true} : Part{begin, end, false};
    }
};

enum class Access { kGather, kTake, kAdd, kSet };

// One element of x for each index. V is the type of values.
template <Access kind, class T, class V>
struct AtIndices {
    static constexpr int kThreads = 256;
    static constexpr bool kReads = kind == Access::kGather || kind == Access::kTake;
    struct Shared {};
    std::conditional_t<kind == Access::kGather, const T*, T*> x;
    std::int64_t n;
    const std::int32_t* indices;
    std::conditional_t<kReads, V*, const V*> values;
    std::int64_t count;
    float scale;
    Fault fault;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t j = block.index * kThreads + t;
            if (j >= count) return;
            const std::int64_t i = indices[j];
            if (!is_good(indices, j, n, kind != Access::kGather)) {
                note(fault, 0, j);
                if constexpr (kReads) values[j] = V{};
            } else if constexpr (kReads) {
                values[j] = from_float<V>(to_float(x[i]));
                if constexpr (kind == Access::kTake) x[i] = T{};
            } else {
                const float product = scale * to_float(values[j]);
                x[i] = from_float<T>(kind == Access::kAdd ? to_float(x[i]) + product : product);
            }
        });
    }
};

}  // namespace hvd_compress::cuda
