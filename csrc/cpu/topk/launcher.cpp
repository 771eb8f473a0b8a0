#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/topk.hpp"
#include "selection.hpp"

namespace hvd_compress::cpu {
namespace {

Status check(std::int64_t n, std::int64_t k, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n) return Status::kBadSize;
    return workspace.bytes < topk_workspace_bytes(n, k) ? Status::kWorkspaceTooSmall : Status::kOk;
}

}  // namespace

std::size_t topk_workspace_bytes(std::int64_t n, std::int64_t k) noexcept { return Layout(n, k).bytes; }

Status topk(ConstArray x, std::int64_t n, std::int64_t k, std::int32_t* indices, void* values, Workspace workspace,
            Stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const TopkKernels& kernels = topk_kernels();
        const int type = static_cast<int>(x.dtype);
        const T* source = static_cast<const T*>(x.data);
        const auto value_at = [=](std::int64_t i) { return to_float(source[i]); };
        const auto prefetch = [=](std::int64_t i) { __builtin_prefetch(source + i); };
        const auto collect = [&](Place place, Key low, Candidates found) {
            return kernels.collect[many(n, k)][type](source, place, low, found);
        };
        const auto put_back = [](Candidates, std::int64_t) {};  // x is as it was
        Selection selection(n, k, workspace, indices, values, passes_over(x));
        selection.by_sample(value_at, prefetch, collect, put_back);
        return selection.emit_largest(k);
    });
}

Status topk_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k,
                       std::int32_t* indices, float* values, Workspace workspace, Stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        const TopkKernels& kernels = topk_kernels();
        const auto accumulate_collect =
            kernels.accumulate_collect[many(n, k)][static_cast<int>(grad.dtype)][out.dtype != DType::kFloat32];
        const G* g = static_cast<const G*>(grad.data);
        const R* r = static_cast<const R*>(residual.data);
        R* left = static_cast<R*>(out.data);
        const bool past_caches = goes_past_caches(left, r, g, sizeof(R) == sizeof(float) ? n * sizeof(R) : 0);
        const auto value_at = [=](std::int64_t i) { return to_float(corrected(g[i], r[i])); };
        const auto prefetch = [=](std::int64_t i) {
            __builtin_prefetch(g + i);
            __builtin_prefetch(r + i);
        };
        const auto collect = [=](Place place, Key low, Candidates found) {
            return accumulate_collect(g, r, left, place, past_caches, low, found);
        };
        const auto put_back = [=](Candidates from, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i) left[from.indices[i]] = from_float<R>(from.values[i]);
        };
        Selection selection(n, k, workspace, indices, values, passes_from(out));
        selection.by_sample(value_at, prefetch, collect, put_back);
        return selection.emit_largest(k);
    });
}

}  // namespace hvd_compress::cpu
