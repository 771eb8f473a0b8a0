#include <algorithm>
#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/threshold.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kChunk = 8192;

std::int64_t chunks(std::int64_t n) { return divided_up(n, kChunk); }

// Found elements that the workspace keeps; more are looked for a second time.
std::int64_t capacity(std::int64_t n) { return n / 32 + kChunk; }

// The keys of all x with |x| >= tau are at least this: that of tau, and none lies below zero.
std::uint32_t lowest_key(float tau) { return tau > 0.0f ? Traits<float>::key(tau) : 0; }

// A chunk's elements: `count` of them, kept from `kept` on or, if it is negative, not at all; `position` in the result.
struct Row {
    std::int64_t count, kept, position;
};

struct Parts {
    Row* rows;
    std::int32_t* indices;
    float* values;

    Parts(Workspace workspace, std::int64_t n)
        : rows(static_cast<Row*>(workspace.data)),
          indices(reinterpret_cast<std::int32_t*>(rows + chunks(n))),
          values(reinterpret_cast<float*>(indices + capacity(n))) {}
};

// A thread's own place for one chunk.
struct Buffer {
    alignas(64) std::int32_t indices[kChunk + kLanes];
    alignas(64) float values[kChunk + kLanes];
};

constexpr std::uint32_t kUnreachable = 0x80000000u;  // above every key, NaN included

// collect(place, found) returns how many elements of a chunk it has found; where the workspace has no room for them,
// leave(place) is called.
template <class Collect, class Leave>
std::int64_t count_all(std::int64_t n, const Parts& parts, const Collect& collect, const Leave& leave) {
    std::atomic<std::int64_t> end{0};
    parallel_for(chunks(n), [&](std::int64_t chunk) {
        Buffer found;
        const Place place = chunk_of(chunk, kChunk, n);
        const std::int64_t own = collect(place, &found);
        const std::int64_t first = end.fetch_add(own, std::memory_order_relaxed);
        const bool fits = first + own <= capacity(n);
        parts.rows[chunk] = {own, fits ? first : -1, 0};
        if (!fits) return leave(place);
        std::copy_n(found.indices, own, parts.indices + first);
        std::copy_n(found.values, own, parts.values + first);
    });
    std::int64_t count = 0;
    for (std::int64_t chunk = 0; chunk < chunks(n); ++chunk) {
        parts.rows[chunk].position = count;
        count += parts.rows[chunk].count;
    }
    return count;
}

// Hands out what count_all() has found. Chunks without room in the workspace are looked through again, and
// taken(indices, count) is told what was found then.
template <class T, class Taken>
Status hand_out(const void* x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices, T* values,
                const Parts& parts, ThresholdKernels::Select select, const Taken& taken) {
    std::atomic<std::int64_t> missing{count};
    parallel_for(chunks(n), [&](std::int64_t chunk) {
        const Row row = parts.rows[chunk];
        Buffer again;
        const bool kept = row.kept >= 0;
        const std::int64_t own =
            kept ? row.count
                 : select(x, chunk_of(chunk, kChunk, n), lowest_key(tau), row.count, again.indices, again.values);
        const float* from = kept ? parts.values + row.kept : again.values;
        T* target = values + row.position;
        std::copy_n(kept ? parts.indices + row.kept : again.indices, own, indices + row.position);
        for (std::int64_t j = 0; j < own; ++j) target[j] = from_float<T>(from[j]);
        if (!kept) taken(again.indices, own);
        missing -= own;
    });
    return missing == 0 ? Status::kOk : Status::kChangedMeanwhile;
}

Status check(std::int64_t n, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return workspace.bytes < threshold_workspace_bytes(n) ? Status::kWorkspaceTooSmall : Status::kOk;
}

}  // namespace

std::size_t threshold_workspace_bytes(std::int64_t n) noexcept {
    return static_cast<std::size_t>(chunks(n)) * sizeof(Row) +
           static_cast<std::size_t>(capacity(n)) * (sizeof(std::int32_t) + sizeof(float));
}

Status threshold_count(ConstArray x, std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                       Stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto) {
        const auto select = threshold_kernels().select[static_cast<int>(x.dtype)];
        const auto collect = [&](Place place, Buffer* found) {
            return select(x.data, place, lowest_key(tau), kChunk, found->indices, found->values);
        };
        *count = count_all(n, Parts(workspace, n), collect, [](Place) {});
        return Status::kOk;
    });
}

Status threshold_select(ConstArray x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices,
                        void* values, Workspace workspace, Stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const auto select = threshold_kernels().select[static_cast<int>(x.dtype)];
        return hand_out(x.data, n, tau, count, indices, static_cast<T*>(values), Parts(workspace, n), select,
                        [](const std::int32_t*, std::int64_t) {});
    });
}

// 12 bytes an fp32 element, 20 with a velocity.
Status threshold_accumulate(ConstArray grad, const float* residual, Momentum momentum, float* out, std::int64_t n,
                            float tau, std::int64_t* count, Workspace workspace, Stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(grad.dtype, [&](auto) {
        const auto select = threshold_kernels().accumulate_select[static_cast<int>(grad.dtype)];
        const bool past_caches =
            goes_past_caches(out, residual, grad.data, static_cast<std::size_t>(n) * sizeof(float));
        const auto accumulate = [&](Place place, std::uint32_t low, Buffer* found) {
            return select(grad.data, residual, momentum, out, place, past_caches, low, found->indices, found->values);
        };
        const auto collect = [&](Place place, Buffer* found) { return accumulate(place, lowest_key(tau), found); };
        const auto leave = [&](Place place) {
            Buffer nothing;
            accumulate(place, kUnreachable, &nothing);
        };
        *count = count_all(n, Parts(workspace, n), collect, leave);
        return Status::kOk;
    });
}

Status threshold_take(float* x, float* velocity_out, std::int64_t n, float tau, std::int64_t count,
                      std::int32_t* indices, float* values, Workspace workspace, Stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    const auto clear = [&](const std::int32_t* taken, std::int64_t own) {
        for (std::int64_t j = 0; j < own; ++j) x[taken[j]] = 0.0f;
        for (std::int64_t j = 0; velocity_out != nullptr && j < own; ++j) velocity_out[taken[j]] = 0.0f;
    };
    const auto select = threshold_kernels().select[static_cast<int>(DType::kFloat32)];
    return hand_out(x, n, tau, count, indices, values, Parts(workspace, n), select, clear);
}

}  // namespace hvd_compress::cpu
