// The steps of one selection of the k largest; launcher.cu says in which order. None of them waits for the host: what
// one step finds out lies in State, and a step that is not needed ends at once.
//
// The key of the k-th largest is found by two digits of 12 bits of how far it lies above the beginning of a range of at
// most 2^24 keys.
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
    Count found;          // candidates, those without room included; from bit 32 on those of them above the range
    std::int64_t wanted;  // how many are wanted of those that the digits so far leave; at the end: of the last ones
    Key low, high;        // candidates are all elements from `low` on; the range is low..high - 1
    Key base;             // the first key that the first digit leaves
    Key first, last;      // at the end all elements from `first` on are selected, and the first `wanted` from `last` on
    Stage stage;
    std::uint32_t arrived[4];  // blocks of the launches whose last one goes on alone

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
        const std::int64_t ranks[2] = {upper, lower};
        walk<kThreads, 2>(block, shared, sample, kSampleBins, ranks);
        block.each([&](int t) {
            const Walked least = shared.result[0], most = shared.result[1];
            if (t != 0 || least.bin <= 0) return;
            const Key low = static_cast<Key>(least.bin) << kSampleShift;
            const Key end = most.bin < 0 || lower < 1 ? kUnreachable : static_cast<Key>(most.bin + 1) << kSampleShift;
            state->low = low;
            state->high = end - low < kWidestRange ? end : low + kWidestRange;
        });
    }
};

}  // namespace hvd_compress::cuda
