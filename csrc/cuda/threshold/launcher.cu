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

}  // namespace

std::size_t threshold_workspace_bytes(std::int64_t n) noexcept {
    return n > 0 ? static_cast<std::size_t>(divided_up(n, kSelectTile)) * sizeof(std::int64_t) : 0;
}

Status threshold_count(ConstArray x, std::int64_t n, float tau, std::int64_t* count, Workspace workspace,
                       Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const std::int64_t tiles = divided_up(n, kSelectTile);
        std::int64_t* const rows = static_cast<std::int64_t*>(workspace.data);
        launch(CountReaching<T>{{Plain<T>(x, n), lowest_key(tau)}, rows}, tiles, stream);
        launch(PlaceCounts{rows, tiles, count}, 1, stream);
        return launch_status();
    });
}

Status threshold_select(ConstArray x, std::int64_t n, float tau, std::int64_t count, std::int32_t* indices,
                        void* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const std::int64_t* const rows = static_cast<const std::int64_t*>(workspace.data);
        launch(EmitReaching<T>{{Plain<T>(x, n), lowest_key(tau)}, rows, count, indices, static_cast<T*>(values)},
               divided_up(n, kSelectTile), stream);
        return launch_status();
    });
}

}  // namespace hvd_compress::cuda
