#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

Status check(std::int64_t n, ConstArray residual, Array out, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < sign_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return out.dtype == residual.dtype ? Status::kOk : Status::kBadDType;
}

}  // namespace

std::size_t sign_workspace_bytes(std::int64_t n) noexcept {
    return n > 0 ? static_cast<std::size_t>(divided_up(n, kSumBlock)) * sizeof(double) : 0;
}

Status sign_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::uint8_t* bits,
                       float* scale, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, residual, out, workspace); status != Status::kOk) return status;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using R = typename decltype(residual_tag)::Type;
        using Source = Fed<typename decltype(grad_tag)::Type, R>;
        double* const sums = static_cast<double*>(workspace.data);
        R* const left = static_cast<R*>(out.data);
        const std::int64_t tiles = divided_up(n, kSumBlock);
        launch(Correct<Source>{Source(grad, residual, out, n), bits, sums}, tiles, stream);
        launch(Average{sums, n, scale}, 1, stream);
        launch(SubtractSent<R>{left, n, is_aligned(left), scale}, tiles, stream);
        return launch_status();
    });
}

Status sign_accumulate_kept(ConstArray grad, ConstArray kept, const float* kept_scale, Array out, std::int64_t n,
                            std::uint8_t* bits, float* scale, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, kept, out, workspace); status != Status::kOk) return status;
    return dispatch_pair(grad.dtype, kept.dtype, [&](auto grad_tag, auto kept_tag) {
        using Source = FedKept<typename decltype(grad_tag)::Type, typename decltype(kept_tag)::Type>;
        double* const sums = static_cast<double*>(workspace.data);
        launch(Correct<Source>{Source(grad, kept, kept_scale, out, n), bits, sums}, divided_up(n, kSumBlock), stream);
        launch(Average{sums, n, scale}, 1, stream);
        return launch_status();
    });
}

Status sign_add(const std::uint8_t* bits, const float* scale, Array out, std::int64_t n, float weight,
                Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return dispatch(out.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        T* const target = static_cast<T*>(out.data);
        launch(AddSigns<T>{bits, scale, target, n, is_aligned(target), weight}, divided_up(n, kSumBlock), stream);
        return launch_status();
    });
}

}  // namespace hvd_compress::cuda
