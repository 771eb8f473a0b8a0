// The k largest of few elements in one launch: a block that keeps the best it has met in a queue.
//
// Elements that reach the threshold join the queue in the order of their indices; when it is full, the k largest stay
// and the threshold rises to the least of them. So what a heap does for one thread, a block does for 2048 elements at
// once. Each element is read and written once, by one multiprocessor, which pays where launches take longer than that.
#pragma once

#include "digits.hpp"

namespace hvd_compress::cuda {

constexpr int kQueueThreads = 512;
using QueueTile = Tile<kQueueThreads, 1>;
constexpr int kQueueTile = QueueTile::kNumel;
constexpr int kQueueRoom = 2 * kQueueTile;
constexpr int kQueueEach = kQueueRoom / kQueueThreads;
constexpr std::int64_t kQueueMaxK = kQueueRoom - kQueueTile;  // k stay, and a tile joins them
constexpr int kQueueBins = 256;

template <class Source, class S>
struct Queue {
    static constexpr int kThreads = kQueueThreads;
    struct Shared {
        float values[kQueueRoom];
        std::int32_t indices[kQueueRoom];
        std::uint32_t bins[kQueueBins], scratch[32];
        Walked at;
    };
    Source source;
    std::int64_t n, k;
    std::int32_t* indices;
    S* selected;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        int count = 0;
        Key least = 0;  // that joins
        for (std::int64_t start = 0;; start += kQueueTile) {
            const bool ends = start >= n;
            if (count > (ends ? k : kQueueRoom - kQueueTile)) {
                least = keep_largest(block, shared, count) + 1;  // equal ones come later
                count = static_cast<int>(k);
            }
            if (ends) break;
            count += join(block, shared, start, count, least);
        }
        block.each([&](int t) {
            for (int i = t; i < k; i += kThreads) {
                indices[i] = shared.indices[i];
                selected[i] = from_float<S>(shared.values[i]);
                source.set(shared.indices[i], 0.0f);
            }
        });
    }

  private:
    // Corrects a tile; returns how many of its elements join the queue, behind the `count` that it holds.
    template <class B>
    HVD_COMPRESS_TILE int join(const B& block, Shared& shared, std::int64_t start, int count, Key least) const {
        struct Four {
            float v[1][kWide];
        };
        const QueueTile tile{start / kQueueTile};
        typename B::template Each<Four> own;
        typename B::template Each<std::uint32_t> place;
        block.each([&](int t) {
            source.read(tile, t, own[t].v);
            source.write(tile, t, own[t].v);
            place[t] = 0;
            for_each_value(own[t].v, [&](float x, int, int j) { place[t] += joins(x, tile.at(0, t) + j, least); });
        });
        const std::uint32_t total = block.exclusive_sum(place, shared.scratch);
        block.each([&](int t) {
            std::uint32_t at = count + place[t];
            for_each_value(own[t].v, [&](float x, int, int j) {
                const std::int64_t i = tile.at(0, t) + j;
                if (!joins(x, i, least)) return;
                shared.values[at] = x;
                shared.indices[at++] = static_cast<std::int32_t>(i);
            });
        });
        block.sync();
        return static_cast<int>(total);
    }

    HVD_COMPRESS_TILE bool joins(float value, std::int64_t i, Key least) const {
        return i < n && Traits<float>::key(value) >= least;
    }

    // Leaves the k largest of the queue in it, in their order; returns the least one's key. k < count.
    template <class B>
    HVD_COMPRESS_TILE Key keep_largest(const B& block, Shared& shared, int count) const {
        Key prefix = 0;
        std::int64_t wanted = k;
        if (k == 0) return kUnreachable - 1;
        for (int shift = 24; shift >= 0; shift -= 8) {
            const Walked at = walk_digit(block, shared, count, prefix, shift, wanted);
            prefix = prefix << 8 | static_cast<Key>(at.bin);
            wanted -= at.above;
        }
        struct Some {
            float values[kQueueEach];
            std::int32_t indices[kQueueEach];
        };
        typename B::template Each<Some> own;
        typename B::template Each<std::uint32_t> both;  // larger, and equal << 16
        block.each([&](int t) {
            both[t] = 0;
            HVD_COMPRESS_UNROLL
            for (int j = 0; j < kQueueEach; ++j) {
                const int i = t * kQueueEach + j;
                own[t].values[j] = i < count ? shared.values[i] : 0.0f;
                own[t].indices[j] = i < count ? shared.indices[i] : -1;
                both[t] += own[t].indices[j] < 0 ? 0 : order(own[t].values[j], prefix);
            }
        });
        block.exclusive_sum(both, shared.scratch);
        block.each([&](int t) {
            std::uint32_t larger = both[t] & 0xffffu, equal = both[t] >> 16;
            const auto ties = static_cast<std::uint32_t>(wanted);
            HVD_COMPRESS_UNROLL
            for (int j = 0; j < kQueueEach; ++j) {
                if (own[t].indices[j] < 0) continue;
                const std::uint32_t which = order(own[t].values[j], prefix);
                if (which == 1 || (which != 0 && equal < ties)) {
                    const std::uint32_t place = larger + (equal < ties ? equal : ties);
                    shared.values[place] = own[t].values[j];
                    shared.indices[place] = own[t].indices[j];
                }
                larger += which & 0xffffu;
                equal += which >> 16;
            }
        });
        block.sync();
        return prefix;
    }

    static HVD_COMPRESS_TILE std::uint32_t order(float value, Key threshold) {
        const Key key = Traits<float>::key(value);
        return static_cast<std::uint32_t>(key > threshold) + (static_cast<std::uint32_t>(key == threshold) << 16);
    }

    // Of the queue's elements whose upper digits are `prefix`: the next digit of the one of rank `wanted`.
    template <class B>
    HVD_COMPRESS_TILE Walked walk_digit(const B& block, Shared& shared, int count, Key prefix, int shift,
                                        std::int64_t wanted) const {
        typename B::template Each<std::uint32_t> own, before;
        block.each([&](int t) {
            if (t < kQueueBins) shared.bins[t] = 0;
        });
        block.sync();
        block.each([&](int t) {
            for (int i = t; i < count; i += kThreads) {
                const std::uint64_t key = Traits<float>::key(shared.values[i]);
                if (key >> (shift + 8) == prefix) atomic_add(&shared.bins[key >> shift & 0xff], 1u);
            }
        });
        block.sync();
        block.each([&](int t) { before[t] = own[t] = t < kQueueBins ? shared.bins[kQueueBins - 1 - t] : 0; });
        block.exclusive_sum(before, shared.scratch);
        block.each([&](int t) {
            if (before[t] < wanted && wanted <= before[t] + own[t]) shared.at = {kQueueBins - 1 - t, before[t]};
        });
        block.sync();
        return shared.at;
    }
};

}  // namespace hvd_compress::cuda
