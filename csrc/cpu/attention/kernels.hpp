// The loops of decode_attention(); one table a level of vector instructions.
#pragma once

#include "../isa/level.hpp"
#include "../isa/types.hpp"

namespace hvd_compress::cpu {

// Scores that weigh a row of values, and where the sum goes.
struct Weighted {
    const float* weights;
    float factor;  // of the sum
    void* out;
};

struct AttentionKernels {
    // Copies `dim` elements to fp32, and fills up the vector with zeros. By dtype.
    void (*widen[3])(const void* x, std::int64_t dim, float* out);

    // scores[j * stride + t] = queries[j] . keys[t] for the tokens of a place in a row of `row_tokens`; queries come
    // from widen(), one behind the other. By dtype of the keys.
    void (*multiply[3])(const float* queries, std::int64_t count, const void* keys, std::int64_t dim,
                        std::int64_t row_tokens, Place tokens, float* scores, std::int64_t stride);

    // scores[t] = exp(scaling * scores[t] - the largest of all), 0 where a token is not seen; returns the factor that
    // makes their sum 1, or 0 where no token is seen. There is room for whole vectors.
    float (*exponentiate)(float* scores, std::int64_t tokens, float scaling, const std::uint8_t* seen);

    // out = factor * sum_t weights[t] * values[t], of all in a list. By dtype of the values.
    void (*weigh[3])(const void* values, std::int64_t dim, std::int64_t tokens, const Weighted* list,
                     std::int64_t count);
};

HVD_COMPRESS_TABLE(AttentionKernels, attention_kernels)

}  // namespace hvd_compress::cpu
