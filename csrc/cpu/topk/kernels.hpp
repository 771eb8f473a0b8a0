// The loops of top-k selection, each over a range of elements; one table a level of vector instructions.
#pragma once

#include <cstdint>

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

constexpr std::int64_t kSlack = 16;  // what is appended to may be written this many elements beyond its end
constexpr int kBins = 4096;
constexpr std::int64_t kChunk = 8192;  // elements whose candidates are kept on a thread's stack

// Elements set apart, in the order of their indices.
struct Candidates {
    std::int32_t* indices;
    float* values;
};

// What is selected: all elements whose key is at least `first`, and of the others with at least `last`, their ties, as
// many as it takes, in the order of indices. Neither is above 2^31.
struct Range {
    Key first, last;
};

struct TopkKernels {
    // Sets apart the elements whose key is at least `low`, which is not 0; returns how many. By whether few will be
    // found (0) or many (1), and by dtype of x.
    using Collect = std::int64_t (*)(const void* x, Place place, Key low, Candidates found);
    Collect collect[2][3];

    // The same of corrected = grad + residual, on its way to `out`, where zeros take the candidates' places.
    // By whether few will be found (0) or many (1), by dtype of grad, and whether out and residual are fp32 (0) or of
    // that dtype (1).
    using AccumulateCollect = std::int64_t (*)(const void* grad, const void* residual, void* out, Place place,
                                               bool past_caches, Key low, Candidates found);
    AccumulateCollect accumulate_collect[2][3][2];

    // The keys below `high` of `count` values go to `keys`; returns how many, the others lie above.
    std::int64_t (*keys_below)(const float* values, std::int64_t count, Key high, Key* keys);

    // Counts keys by (key - low) >> shift, but what lies below `low` or beyond the last bin.
    void (*count_keys)(const Key* keys, std::int64_t count, Key low, int shift, Count* bins);

    // How many of `count` values are selected, and how many are their ties.
    void (*rank)(const float* values, std::int64_t count, Range range, std::int64_t* above, std::int64_t* equal);

    // Moves the candidates of a chunk that are selected, and the first `ties` of the others within the range, to
    // `indices` and `selected` (of the dtype that comes first); with `out`, the rest goes back there. Reads up to
    // kSlack candidates more. By dtypes of `selected` and `out`.
    using Emit = void (*)(Candidates from, std::int64_t count, Range range, std::int64_t ties, std::int32_t* indices,
                          void* selected, void* out);
    Emit emit[3];              // selected of this dtype, no `out`
    Emit emit_and_restore[3];  // selected fp32, `out` of this dtype

    // Whole ranges of x, by dtype: the slow way, for whatever the sample was wrong about.
    // Counts the elements with key >> (shift + bits) == prefix by their next `bits` bits.
    using CountDigit = void (*)(const void* x, Place place, int shift, int bits, Key prefix, Count* bins);
    CountDigit count_digit[3];
    using RankRange = void (*)(const void* x, Place place, Range range, std::int64_t* above, std::int64_t* equal);
    RankRange rank_range[3];
    using Select = std::int64_t (*)(void* x, Place place, Range range, std::int64_t ties, std::int64_t limit,
                                    std::int32_t* indices, void* selected);
    Select select[3];           // selected of the dtype of x, x as it was
    Select select_and_zero[3];  // selected fp32, zeros take their places in x; both return how many, at most `limit`
};

HVD_COMPRESS_TABLE(TopkKernels, topk_kernels)

}  // namespace hvd_compress::cpu
