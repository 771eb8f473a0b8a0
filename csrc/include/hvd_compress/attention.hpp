// Attention of one token of each sequence to all tokens before it, where rows are shared: the scores of a query are
// computed once, and weigh several rows of values (clustered head attention).
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// Rows (count, tokens, dim): one begins `stride` elements after the one before, and its tokens follow each other.
struct AttentionRows {
    ConstArray array;
    std::int64_t count, stride, dim;
};

// One vector for each head of each sequence; row i is head i % heads of sequence i / heads.
struct AttentionQuery {
    ConstArray array;
    std::int64_t count, heads, sequence_stride, head_stride;
};

// Which query meets which keys, and which scores weigh which values. A row of scores is what a query gives with the
// tokens of a row of keys; an output is what these scores give with a row of values.
//
// `index` has five lists, one behind the other:
//     key rows + 1    where the scores of each row of keys begin; 0 first, `scores` last
//     scores          the query of each
//     value rows + 1  where the outputs of each row of values begin; 0 first, `outputs` last
//     outputs         the scores of each
//     outputs         its row among the outputs
struct AttentionPlan {
    const std::int64_t* index;
    std::int64_t scores, outputs;
};

// Which tokens of a sequence are seen: bytes (sequences, tokens), 0 where one is not. Without `data` all are.
struct AttentionMask {
    const std::uint8_t* data;
    std::int64_t stride;
};

using DecodeAttentionWorkspaceBytes = std::size_t(std::int64_t key_rows, std::int64_t value_rows, std::int64_t scores,
                                                  std::int64_t outputs, std::int64_t head_dim,
                                                  std::int64_t tokens) noexcept;

// out[o] = sum_t softmax_t(scaling * query . keys[t]) * values[t], rounded once; out is (outputs, values.dim).
//
// In fp32, of which no order depends on threads or vector instructions. Where no token is seen, the output is 0. The
// three arrays and out have one dtype. kBadSize where the lists of the plan do not ascend as they must, and
// kIndexOutOfRange where what they name is not there: *first_bad is then the position in `index`.
using DecodeAttention = Status(AttentionPlan plan, AttentionQuery query, AttentionRows keys, AttentionRows values,
                               AttentionMask mask, std::int64_t tokens, float scaling, void* out, Workspace workspace,
                               std::int64_t* first_bad) noexcept;

// One token of each row, (rows) vectors of `bytes` each: row i of `index` is head i % heads of sequence i / heads.
struct TokenRows {
    const void* data;
    std::int64_t count, heads, sequence_stride, head_stride, bytes;  // strides in bytes, too
};

// Copies rows index[0..count-1] of a token to `store`, `stride` bytes apart. kIndexOutOfRange tells where in
// *first_bad.
using CopyTokens = Status(TokenRows token, const std::int64_t* index, std::int64_t count, void* store,
                          std::int64_t stride, std::int64_t* first_bad) noexcept;

// On a GPU, torch's own kernels do this.
namespace cpu {
CopyTokens copy_tokens;
DecodeAttentionWorkspaceBytes decode_attention_workspace_bytes;
DecodeAttention decode_attention;
}  // namespace cpu

}  // namespace hvd_compress
