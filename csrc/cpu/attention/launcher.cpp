#include "../pool/pool.hpp"
#include "hvd_compress/attention.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kTokensAtOnce = 512;  // of a row of keys: what one thread takes in turn
constexpr std::int64_t kOutputsAtOnce = 32;
constexpr std::int64_t kMostProducts = std::int64_t{1} << 40;  // of which the workspace has room for 4 TiB

std::int64_t whole_vectors(std::int64_t n) { return divided_up(n, kLanes) * kLanes; }

// The plan's lists, each within the workspace, where nobody else writes to them once they are checked.
struct Lists {
    std::int64_t *key_begin, *query_of, *value_begin, *scores_of, *output_of;
};

// How the workspace is divided. Its first address counts as a multiple of a cache line.
struct Parts {
    std::int64_t lists;  // numbers of the plan
    std::int64_t query;  // floats of a query
    std::int64_t row;    // floats of a row of scores
    std::size_t lists_bytes, queries_bytes, factors_bytes, scores_bytes;

    Parts(std::int64_t key_rows, std::int64_t value_rows, std::int64_t scores, std::int64_t outputs,
          std::int64_t head_dim, std::int64_t tokens)
        : lists(key_rows + 1 + scores + value_rows + 1 + 2 * outputs),
          query(whole_vectors(head_dim)),
          row(whole_vectors(tokens)),
          lists_bytes(bytes_of(whole_vectors(lists), 8)),
          queries_bytes(bytes_of(scores, 4 * query)),
          factors_bytes(bytes_of(whole_vectors(scores), 4)),
          scores_bytes(bytes_of(scores, 4 * row)) {}

    std::size_t bytes() const { return lists_bytes + queries_bytes + factors_bytes + scores_bytes; }

  private:
    static std::size_t bytes_of(std::int64_t count, std::int64_t each) {
        return static_cast<std::size_t>(count) * static_cast<std::size_t>(each);
    }
};

// Copies numbers that ascend from 0 to `last`; returns the position of the first that does not, or -1.
std::int64_t copy_ascending(const volatile std::int64_t* from, std::int64_t count, std::int64_t last,
                            std::int64_t* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = from[i];
        const bool good = i == 0 ? to[i] == 0 : to[i] >= to[i - 1] && to[i] <= last;
        if (!good || (i + 1 == count && to[i] != last)) return i;
    }
    return -1;
}

// Copies numbers from 0 to n - 1; returns the position of the first that is none, or -1.
std::int64_t copy_below(const volatile std::int64_t* from, std::int64_t count, std::int64_t n, std::int64_t* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = from[i];
        if (to[i] < 0 || to[i] >= n) return i;
    }
    return -1;
}

// Copies the plan to `to`, checked.
Status copy_plan(const AttentionPlan& plan, std::int64_t key_rows, std::int64_t value_rows, std::int64_t queries,
                 std::int64_t* to, Lists* lists, std::int64_t* first_bad) {
    *lists = {to, to + key_rows + 1, nullptr, nullptr, nullptr};
    lists->value_begin = lists->query_of + plan.scores;
    lists->scores_of = lists->value_begin + value_rows + 1;
    lists->output_of = lists->scores_of + plan.outputs;
    const auto from = [&](const std::int64_t* list) { return plan.index + (list - to); };
    const auto found = [&](const std::int64_t* list, std::int64_t bad) {
        if (bad >= 0) *first_bad = list - to + bad;
        return bad >= 0;
    };
    const Lists& l = *lists;
    if (found(l.key_begin, copy_ascending(from(l.key_begin), key_rows + 1, plan.scores, l.key_begin)) ||
        found(l.value_begin, copy_ascending(from(l.value_begin), value_rows + 1, plan.outputs, l.value_begin))) {
        return Status::kBadSize;
    }
    if (found(l.query_of, copy_below(from(l.query_of), plan.scores, queries, l.query_of)) ||
        found(l.scores_of, copy_below(from(l.scores_of), plan.outputs, plan.scores, l.scores_of)) ||
        found(l.output_of, copy_below(from(l.output_of), plan.outputs, plan.outputs, l.output_of))) {
        return Status::kIndexOutOfRange;
    }
    return Status::kOk;
}

Status check(const AttentionPlan& plan, const AttentionQuery& query, const AttentionRows& keys,
             const AttentionRows& values, const AttentionMask& mask, std::int64_t tokens) {
    const std::int64_t sizes[] = {plan.scores,  plan.outputs,  query.count, keys.count, keys.stride, keys.dim,
                                  values.count, values.stride, values.dim,  tokens,     mask.stride};
    for (const std::int64_t size : sizes) {
        if (size < 0) return Status::kBadSize;
        if (size > kMaxNumel) return Status::kTooLarge;
    }
    if (plan.scores * (tokens + keys.dim) > kMostProducts) return Status::kTooLarge;
    if (query.heads < 1) return Status::kBadSize;
    if (keys.array.dtype != query.array.dtype || values.array.dtype != query.array.dtype) return Status::kBadDType;
    return dispatch(query.array.dtype, [](auto) { return Status::kOk; });
}

template <class T>
void run(const AttentionPlan& plan, const AttentionQuery& query, const AttentionRows& keys, const AttentionRows& values,
         const AttentionMask& mask, std::int64_t tokens, float scaling, T* out, const Parts& parts, const Lists& lists,
         char* memory) {
    const AttentionKernels& kernels = attention_kernels();
    const int dtype = static_cast<int>(query.array.dtype);
    float* queries = reinterpret_cast<float*>(memory);
    float* factors = reinterpret_cast<float*>(memory + parts.queries_bytes);
    float* scores = reinterpret_cast<float*>(memory + parts.queries_bytes + parts.factors_bytes);

    for (std::int64_t i = 0; i < plan.scores; ++i) {
        const std::int64_t row = lists.query_of[i];
        const std::int64_t at = row / query.heads * query.sequence_stride + row % query.heads * query.head_stride;
        kernels.widen[dtype](static_cast<const T*>(query.array.data) + at, keys.dim, queries + i * parts.query);
    }
    const std::int64_t pieces = divided_up(tokens, kTokensAtOnce);
    parallel_for(keys.count * pieces, [&](std::int64_t part) {
        const std::int64_t row = part / pieces, first = lists.key_begin[row];
        kernels.multiply[dtype](queries + first * parts.query, lists.key_begin[row + 1] - first,
                                static_cast<const T*>(keys.array.data) + row * keys.stride, keys.dim, tokens,
                                chunk_of(part % pieces, kTokensAtOnce, tokens), scores + first * parts.row, parts.row);
    });
    parallel_for(plan.scores, [&](std::int64_t i) {
        const std::int64_t sequence = lists.query_of[i] / query.heads;
        float* row = scores + i * parts.row;
        for (std::int64_t t = tokens; t < parts.row; ++t) row[t] = 0.0f;  // they are read, and count for nothing
        factors[i] = kernels.exponentiate(row, tokens, scaling,
                                          mask.data == nullptr ? nullptr : mask.data + sequence * mask.stride);
    });
    parallel_for(values.count, [&](std::int64_t row) {
        const T* own = static_cast<const T*>(values.array.data) + row * values.stride;
        Weighted list[kOutputsAtOnce];
        std::int64_t count = 0;
        for (std::int64_t i = lists.value_begin[row], end = lists.value_begin[row + 1]; i < end;) {
            for (count = 0; count < kOutputsAtOnce && i < end; ++i, ++count) {
                const std::int64_t from = lists.scores_of[i];
                list[count] = {scores + from * parts.row, factors[from], out + lists.output_of[i] * values.dim};
            }
            kernels.weigh[dtype](own, values.dim, tokens, list, count);
        }
    });
}

}  // namespace

std::size_t decode_attention_workspace_bytes(std::int64_t key_rows, std::int64_t value_rows, std::int64_t scores,
                                             std::int64_t outputs, std::int64_t head_dim,
                                             std::int64_t tokens) noexcept {
    return Parts(key_rows, value_rows, scores, outputs, head_dim, tokens).bytes() + 64;
}

Status decode_attention(AttentionPlan plan, AttentionQuery query, AttentionRows keys, AttentionRows values,
                        AttentionMask mask, std::int64_t tokens, float scaling, void* out, Workspace workspace,
                        std::int64_t* first_bad) noexcept {
    if (const Status status = check(plan, query, keys, values, mask, tokens); status != Status::kOk) return status;
    const Parts parts(keys.count, values.count, plan.scores, plan.outputs, keys.dim, tokens);
    if (workspace.bytes < parts.bytes() + 64) return Status::kWorkspaceTooSmall;
    char* memory = static_cast<char*>(workspace.data);
    memory += (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64;
    Lists lists;
    const Status status = copy_plan(plan, keys.count, values.count, query.count,
                                    reinterpret_cast<std::int64_t*>(memory), &lists, first_bad);
    if (status != Status::kOk) return status;
    return dispatch(query.array.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        run(plan, query, keys, values, mask, tokens, scaling, static_cast<T*>(out), parts, lists,
            memory + parts.lists_bytes);
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
