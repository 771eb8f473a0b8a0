#include "compact.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/topk.hpp"
#include "radix_select.hpp"

namespace hvd_compress::cpu {
namespace {

Status check(std::int64_t n, std::int64_t k, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n) return Status::kBadSize;
    return workspace.bytes < topk_workspace_bytes(n, k) ? Status::kWorkspaceTooSmall : Status::kOk;
}

template <class T>
void count_first_digit(const T* x, std::int64_t n, Count* counts) {
    clear(counts);
    for (std::int64_t i = 0; i < n; ++i) ++counts[kFirstDigit<T>.of(Traits<T>::key(x[i]))];
}

// The same, of the error-fed gradient on its way to `out`.
template <class G, class R>
void accumulate_and_count(const G* grad, const R* residual, R* out, std::int64_t n, Count* counts) {
    clear(counts);
    for (std::int64_t i = 0; i < n; ++i) {
        out[i] = corrected(grad[i], residual[i]);
        ++counts[kFirstDigit<R>.of(Traits<R>::key(out[i]))];
    }
}

template <class T, class Emit>
Status select(const T* x, std::int64_t n, std::int64_t k, Count* counts, Emit emit) {
    if (k == 0) return Status::kOk;
    const Threshold<T> threshold = find_threshold(x, n, k, counts);
    return compact(x, n, k, threshold, emit) == k ? Status::kOk : Status::kChangedMeanwhile;
}

}  // namespace

std::size_t topk_workspace_bytes(std::int64_t, std::int64_t) noexcept { return kBins * sizeof(Count); }

Status topk(ConstArray x, std::int64_t n, std::int64_t k, std::int32_t* indices, void* values, Workspace workspace,
            Stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const T* source = static_cast<const T*>(x.data);
        T* selected = static_cast<T*>(values);
        Count* counts = static_cast<Count*>(workspace.data);
        count_first_digit(source, n, counts);
        return select(source, n, k, counts, [=](std::int64_t position, std::int64_t i) {
            indices[position] = static_cast<std::int32_t>(i);
            selected[position] = source[i];
        });
    });
}

Status topk_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k,
                       std::int32_t* indices, float* values, Workspace workspace, Stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        R* left = static_cast<R*>(out.data);
        Count* counts = static_cast<Count*>(workspace.data);
        accumulate_and_count(static_cast<const G*>(grad.data), static_cast<const R*>(residual.data), left, n, counts);
        return select(left, n, k, counts, [=](std::int64_t position, std::int64_t i) {
            indices[position] = static_cast<std::int32_t>(i);
            values[position] = to_float(left[i]);
            left[i] = R{};
        });
    });
}

}  // namespace hvd_compress::cpu
