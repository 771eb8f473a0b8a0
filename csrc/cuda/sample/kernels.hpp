// Where the threshold of the k largest probably lies, from a sample of the elements; and how one finds an element of
// some rank by counts.
#pragma once

#include "../tile.hpp"
#include "hvd_compress/sample.hpp"

namespace hvd_compress::cuda {

using Key = std::uint32_t;

// Counts the sampled elements by their keys' upper bits, but for zeros.
template <class Source>
struct Sample {
    static constexpr int kThreads = 256;
    struct Shared {};
    Source source;
    std::int64_t blocks, stride;
    std::uint32_t* bins;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        block.each([&](int t) {
            const std::int64_t number = block.index * kThreads + t;  // of four elements
            const std::int64_t of = number / (kSampledBlock / kWide);
            if (of >= blocks) return;
            const std::int64_t first = sampled_block(of, stride) + number % (kSampledBlock / kWide) * kWide;
            float v[1][kWide];
            source.read(Tile<1, 1>{first / kWide}, 0, v);
            for_each_value(v, [&](float x, int, int) {
                const Key bin = Traits<float>::key(x) >> kSampleShift;
                if (bin != 0) atomic_add(&bins[bin], 1u);  // nobody asks for zeros, which may be many
            });
        });
    }
};

constexpr int kWalkThreads = 1024;

// The bin, from the last one down, that holds the element of some rank, counted from 1, and how many lie in the bins
// above it; -1 if there are not as many.
struct Walked {
    std::int64_t bin, above;
};

constexpr int kMostWalked = 2;  // ranks at once

struct WalkShared {
    std::uint32_t scratch[32];
    Walked result[kMostWalked];
};

// Finds the bins of all `ranks`; they are in shared.result. `bins` is aligned, and their number a multiple of four
// times that of threads: each has neighbouring ones, and reads four at once.
template <int threads, int count, class B>
HVD_COMPRESS_TILE void walk(const B& block, WalkShared& shared, const std::uint32_t* bins, std::int64_t bin_count,
                            const std::int64_t (&ranks)[count]) {
    static_assert(count <= kMostWalked);
    using Four = Pack<std::uint32_t>;
    const std::int64_t each = bin_count / threads;
    const auto four_of = [&](int t, std::int64_t i) {  // from the thread's i-th on, in the order of bins
        return *reinterpret_cast<const Four*>(bins + bin_count - (t + 1) * each + i);
    };
    typename B::template Each<std::uint32_t> own, before;
    block.each([&](int t) {
        std::uint32_t sums[kWide] = {};
#ifdef __CUDACC__
#pragma unroll 4
#endif
        for (std::int64_t i = 0; i < each; i += kWide) {
            const Four four = four_of(t, i);
            HVD_COMPRESS_UNROLL
            for (int j = 0; j < kWide; ++j) sums[j] += four.element[j];
        }
        before[t] = own[t] = sums[0] + sums[1] + sums[2] + sums[3];
        if (t < count) shared.result[t] = {-1, 0};
    });
    block.exclusive_sum(before, shared.scratch);  // a sync() of the result, too
    block.each([&](int t) {
        HVD_COMPRESS_UNROLL
        for (int which = 0; which < count; ++which) {
            const std::int64_t rank = ranks[which];
            std::int64_t above = before[t];
            if (rank <= above || rank > above + own[t]) continue;
            bool found = false;
            for (std::int64_t i = each - kWide; !found; i -= kWide) {
                const Four four = four_of(t, i);
                HVD_COMPRESS_UNROLL
                for (int j = kWide - 1; j >= 0; --j) {
                    if (!found && above + four.element[j] >= rank) {
                        shared.result[which] = {bin_count - (t + 1) * each + i + j, above};
                        found = true;
                    }
                    if (!found) above += four.element[j];
                }
            }
        }
    });
    block.sync();
}

template <int threads, class B>
HVD_COMPRESS_TILE Walked walk(const B& block, WalkShared& shared, const std::uint32_t* bins, std::int64_t bin_count,
                              std::int64_t rank) {
    const std::int64_t ranks[1] = {rank};
    walk<threads, 1>(block, shared, bins, bin_count, ranks);
    return shared.result[0];
}

// *low becomes the first key of the bin that holds the sampled element of rank `wanted`; it stays where there is none,
// or where that is the bin of zeros.
struct ChooseLow {
    static constexpr int kThreads = kWalkThreads;
    using Shared = WalkShared;
    Key* low;
    const std::uint32_t* sample;
    std::int64_t wanted;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const Walked found = walk<kThreads>(block, shared, sample, kSampleBins, wanted);
        block.each([&](int t) {
            if (t == 0 && found.bin > 0) *low = static_cast<Key>(found.bin) << kSampleShift;
        });
    }
};

}  // namespace hvd_compress::cuda
