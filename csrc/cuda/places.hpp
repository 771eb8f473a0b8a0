// Where the parts of tiles begin, from how long they are.
#pragma once

#include "block.hpp"

namespace hvd_compress::cuda {

constexpr int kPlaceThreads = 1024;

struct PlaceShared {
    Count totals[kPlaceThreads / 32];
};

// Calls f(row) for all rows, each in the thread that place() has for it.
template <class B, class F>
HVD_COMPRESS_TILE void each_row(const B& block, std::int64_t count, const F& f) {
    const std::int64_t each = (count + kPlaceThreads - 1) / kPlaceThreads * 32;
    block.each_warp([&](const Warp& warp) {
        const std::int64_t begin = warp.index * each, end = begin + each < count ? begin + each : count;
        warp.each([&](int lane) {
            for (std::int64_t i = begin + lane; i < end; i += 32) f(i);
        });
    });
}

// Replaces each row by the sum of those before it; returns the sum of all. One block of kPlaceThreads: each warp has a
// stretch of neighbouring rows, and reads 32 at once.
template <class B>
HVD_COMPRESS_TILE Count place(const B& block, PlaceShared& shared, Count* rows, std::int64_t count) {
    const std::int64_t each = (count + kPlaceThreads - 1) / kPlaceThreads * 32;
    block.each_warp([&](const Warp& warp) {
        const std::int64_t begin = warp.index * each, end = begin + each < count ? begin + each : count;
        typename Warp::template Each<Count> own;
        warp.each([&](int lane) {
            own[lane] = 0;
            for (std::int64_t i = begin + lane; i < end; i += 32) own[lane] += rows[i];
        });
        const Count total = warp.sum(own);
        warp.each([&](int lane) {
            if (lane == 0) shared.totals[warp.index] = total;
        });
    });
    block.sync();
    block.each_warp([&](const Warp& warp) {
        const std::int64_t begin = warp.index * each, end = begin + each < count ? begin + each : count;
        Count before = 0;
        for (int other = 0; other < warp.index; ++other) before += shared.totals[other];
        for (std::int64_t start = begin; start < end; start += 32) {
            typename Warp::template Each<Count> own, sums;
            warp.each([&](int lane) { sums[lane] = own[lane] = start + lane < end ? rows[start + lane] : 0; });
            const Count total = warp.sum(own);
            warp.inclusive_sum(sums);
            warp.each([&](int lane) {
                if (start + lane < end) rows[start + lane] = before + sums[lane] - own[lane];
            });
            before += total;
        }
    });
    Count all = 0;
    for (const Count total : shared.totals) all += total;
    return all;
}

}  // namespace hvd_compress::cuda
