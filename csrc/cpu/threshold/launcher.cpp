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

}  // namespace

std::size_t threshold_workspace_bytes(std::int64_t n) noexcept {
    return static_cast<std::size_t>(chunks(n)) * sizeof(Row) +
           static_cast<std::size_t>(capacity(n)) * (sizeof(std::int32_t) + sizeof(float));
}

Status threshold_count(ConstArray x, std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                       Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < threshold_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return dispatch(x.dtype, [&](auto) {
        const auto select = threshold_kernels().select[static_cast<int>(x.dtype)];
        const Parts parts(workspace, n);
        std::atomic<std::int64_t> end{0};
        parallel_for(chunks(n), [&](std::int64_t chunk) {
            Buffer found;
            const std::int64_t own =
                select(x.data, chunk_of(chunk, kChunk, n), lowest_key(tau), kChunk, found.indices, found.values);
            const std::int64_t first = end.fetch_add(own, std::memory_order_relaxed);
            const bool fits = first + own <= capacity(n);
            parts.rows[chunk] = {own, fits ? first : -1, 0};
            if (!fits) return;
            std::copy_n(found.indices, own, parts.indices + first);
            std::copy_n(found.values, own, parts.values + first);
        });
        *count = 0;
        for (std::int64_t chunk = 0; chunk < chunks(n); ++chunk) {
            parts.rows[chunk].position = *count;
            *count += parts.rows[chunk].count;
        }
        return Status::kOk;
    });
}

Status threshold_select(ConstArray x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices,
                        void* values, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < threshold_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const auto select = threshold_kernels().select[static_cast<int>(x.dtype)];
        const Parts parts(workspace, n);
        std::atomic<std::int64_t> missing{count};
        parallel_for(chunks(n), [&](std::int64_t chunk) {
            const Row row = parts.rows[chunk];
            Buffer again;
            const bool kept = row.kept >= 0;
            const std::int64_t own = kept ? row.count
                                          : select(x.data, chunk_of(chunk, kChunk, n), lowest_key(tau), row.count,
                                                   again.indices, again.values);
            const float* from = kept ? parts.values + row.kept : again.values;
            T* target = static_cast<T*>(values) + row.position;
            std::copy_n(kept ? parts.indices + row.kept : again.indices, own, indices + row.position);
            for (std::int64_t j = 0; j < own; ++j) target[j] = from_float<T>(from[j]);
            missing -= own;
        });
        return missing == 0 ? Status::kOk : Status::kChangedMeanwhile;
    });
}

}  // namespace hvd_compress::cpu
