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
};

constexpr Count kNoneBad = ~Count{0};

struct NoneBad {
    static constexpr int kThreads = 32;
    struct Shared {};
    Count* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            if (t == 0) *bad = kNoneBad;
        });
    }
};

// *bad becomes list << 32 | position of the first index that does not lie within 0..n-1 or, where it should, not above
// the one before.
struct CheckList {
    static constexpr int kThreads = 256;
    struct Shared {};
    const std::int32_t* indices;
    std::int64_t length, n, list;
    bool ascending;
    Count* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t j = block.index * kThreads + t;
            if (j >= length) return;
            const std::int64_t index = indices[j];
            if (index < 0 || index >= n || (ascending && j > 0 && indices[j - 1] >= index)) {
                atomic_min(bad, static_cast<Count>(list) << 32 | static_cast<Count>(j));
            }
        });
    }
};

// What CheckList found, as the launchers say it. `bad_list` may be null.
struct SayBad {
    static constexpr int kThreads = 32;
    struct Shared {};
    std::int64_t *bad_list, *first_bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            if (t != 0) return;
            const Count bad = *reinterpret_cast<const Count*>(first_bad);
            if (bad_list != nullptr) *bad_list = bad == kNoneBad ? -1 : static_cast<std::int64_t>(bad >> 32);
            *first_bad = bad == kNoneBad ? -1 : static_cast<std::int64_t>(bad & 0xffffffffu);
        });
    }
};

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
    const Count* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        if (*bad != kNoneBad) return;
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
            const std::int32_t* const indices = lists.list[list].indices;
            const V* const values = static_cast<const V*>(lists.list[list].values);
            block.each([&](int t) {
                for (std::int64_t j = shared.place[2 * list] + t; j < shared.place[2 * list + 1]; j += kThreads) {
                    const std::int64_t place = indices[j] - start;
                    if (place < 0 || place >= kTile) continue;  // changed since it was checked
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
    struct Shared {};
    std::conditional_t<kind == Access::kGather, const T*, T*> x;
    std::int64_t n;
    const std::int32_t* indices;
    std::conditional_t<kind == Access::kGather || kind == Access::kTake, V*, const V*> values;
    std::int64_t count;
    float scale;
    const Count* bad;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        if (*bad != kNoneBad) return;
        block.each([&](int t) {
            const std::int64_t j = block.index * kThreads + t;
            if (j >= count) return;
            const std::int64_t i = indices[j];
            if (i < 0 || i >= n) return;  // changed since it was checked
            if constexpr (kind == Access::kGather || kind == Access::kTake) {
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
