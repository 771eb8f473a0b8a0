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

// The position of the first index that is not below `limit`.
HVD_COMPRESS_TILE std::int64_t lower_bound(const SparseList& list, std::int64_t limit) {
    std::int64_t low = 0, high = list.count;
    while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if (list.indices[middle] < limit) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// A tile of the output is kept near while all lists add to it, one after the other.
//
// Each tile finds its part of a list by search. If these parts lie end to end and each index of a part is good, so is
// the list; where they do not, as in a list that is not sorted, the tile looks at all of it.
template <class V, class T>
struct AddLists {
    static constexpr int kThreads = 256;
    static constexpr int kTile = 8192;
    static constexpr int kRounds = kTile / kThreads / kWide;
    struct Shared {
        float sums[kTile];
        std::int64_t place[2 * kListsAtOnce];  // where each list begins and ends in this tile
    };
    Lists lists;
    T* out;
    std::int64_t n;
    float scale;
    bool clear, aligned;
    Fault fault;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t start = block.index * kTile, stop = start + kTile < n ? start + kTile : n;
        block.each([&](int t) {
            // Searching waits for memory at each step, so as many threads as there are answers search at once.
            if (t < 2 * lists.count) shared.place[t] = lower_bound(lists.list[t / 2], t % 2 == 0 ? start : stop);
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kRounds; ++round) {
                const int own = (round * kThreads + t) * kWide;
                float v[kWide] = {};
                if (!clear) load(out, start + own, n, aligned, v);
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) shared.sums[own + j] = v[j];
            }
        });
        block.sync();
        for (std::int64_t list = 0; list < lists.count; ++list) {
            const SparseList own = lists.list[list];
            const V* const values = static_cast<const V*>(own.values);
            std::int64_t begin = shared.place[2 * list], end = shared.place[2 * list + 1];
            const bool apart = begin > end || (start == 0 && begin != 0) || (stop == n && end != own.count);
            if (apart) begin = 0, end = own.count;
            block.each([&](int t) {
                for (std::int64_t j = begin + t; j < end; j += kThreads) {
                    if (!is_good(own.indices, j, n, true)) {
                        note(fault, lists.first + list, j);
                        continue;
                    }
                    const std::int64_t place = own.indices[j] - start;
                    if (apart || place < 0 || place >= kTile) continue;
                    shared.sums[place] = to_float(from_float<T>(shared.sums[place] + scale * to_float(values[j])));
                }
            });
            block.sync();
        }
        block.each([&](int t) {
            HVD_COMPRESS_UNROLL
            for (int round = 0; round < kRounds; ++round) {
                const int own = (round * kThreads + t) * kWide;
                float v[kWide];
                HVD_COMPRESS_UNROLL
                for (int j = 0; j < kWide; ++j) v[j] = shared.sums[own + j];
                store(out, start + own, n, aligned, v);
            }
        });
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
