#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/threshold.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

// The keys of all x with |x| >= tau are at least this: that of tau, and none lies below zero.
std::uint32_t lowest_key(float tau) { return tau > 0.0f ? Traits<float>::key(tau) : 0; }

Status check(std::int64_t n, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return workspace.bytes < threshold_workspace_bytes(n) ? Status::kWorkspaceTooSmall : Status::kOk;
}

template <class Source>
Status count_reaching(const Source& source, float tau, std::int64_t* count, Workspace workspace, Stream stream) {
    const std::int64_t tiles = divided_up(source.n, SelectTile::kNumel);
    Count* const rows = static_cast<Count*>(workspace.data);
    launch(CountReaching<Source>{{source, lowest_key(tau)}, rows}, tiles, stream);
    launch(PlaceCounts{rows, tiles, count}, 1, stream);
    return launch_status();
}

template <class Source, class T>
Status emit_reaching(const Source& source, float tau, std::int64_t count, std::int32_t* indices, T* values,
                     Workspace workspace, Stream stream) {
    const Count* const rows = static_cast<const Count*>(workspace.data);
    launch(EmitReaching<Source, T>{{source, lowest_key(tau)}, rows, count, indices, values},
           divided_up(source.n, SelectTile::kNumel), stream);
    return launch_status();
}

}  // namespace

std::size_t threshold_workspace_bytes(std::int64_t n) noexcept {
    return n > 0 ? static_cast<std::size_t>(divided_up(n, SelectTile::kNumel)) * sizeof(Count) : 0;
}

Status threshold_count(ConstArray x, std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                       Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return count_reaching(Plain<T>(x, n), tau, count, workspace, stream);
    });
}

Status threshold_select(ConstArray x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices,
                        void* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return emit_reaching(Plain<T>(x, n), tau, count, indices, static_cast<T*>(values), workspace, stream);
    });
}

// 12 bytes an fp32 element, 20 with a velocity; 4 more to hand out.
Status threshold_accumulate(ConstArray grad, const float* residual, Momentum momentum, float* out, std::int64_t n,
                            float tau, std::int64_t* count, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(grad.dtype, [&](auto tag) {
        using G = typename decltype(tag)::Type;
        if (momentum.velocity != nullptr)
            return count_reaching(FedByMomentum<G>(grad, residual, momentum, out, n), tau, count, workspace, stream);
        const Fed<G, float> source(grad, {residual, DType::kFloat32}, {out, DType::kFloat32}, n);
        return count_reaching(source, tau, count, workspace, stream);
    });
}

Status threshold_take(float* x, float* velocity_out, std::int64_t n, float tau, std::int64_t count,
                      std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return emit_reaching(Taken(x, velocity_out, n), tau, count, indices, values, workspace, stream);
}

}  // namespace hvd_compress::cuda
