#include <algorithm>

#include "../topk/launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

struct Workplace {
    Bisection* bisection;
    State* state;
    double* sums;
    Key* tops;
    Ranks* ranks;
    std::int64_t tiles;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n) {
        Parts parts(start);
        tiles = divided_up(n, TopkTile::kNumel);
        bisection = parts.take<Bisection>(1);
        state = parts.take<State>(1);
        sums = parts.take<double>(divided_up(n, kSumBlock));
        tops = parts.take<Key>(divided_up(n, kSumBlock));
        ranks = parts.take<Ranks>(tiles);
        bytes = parts.bytes();
    }
};

// 4 bytes an fp32 element for mean and maximum, or 12 where it is corrected; 4 for each seven rounds, 8 to select.
template <class S, class Source>
Status select(const Source& source, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, S* selected,
              Workspace workspace, Stream stream) {
    const Workplace at(workspace.data, n);
    launch(SumMagnitudes<Source>{source, at.sums, at.tops}, divided_up(n, kSumBlock), stream);
    if (k == 0) return launch_status();
    launch(BeginBisection{at.sums, at.tops, n, k, at.bisection, at.state}, 1, stream);
    using Kernel = CountThresholds<Source>;
    const std::int64_t blocks = std::min(divided_up(n, ThresholdTile::kNumel), resident_blocks<Kernel>());
    for (int done = 0; done < std::max(rounds, kKeyRounds); done += kRoundsAtOnce) {
        launch(Kernel{source, rounds, done, at.bisection}, blocks, stream);
        launch(Bisect{k, rounds, done, at.bisection, at.state}, 1, stream);
    }
    const Elements<Source> elements{source, at.state, nullptr, {}, n, at.tiles};
    launch_emit(elements, at.state, at.ranks, k, indices, selected, stream);
    return launch_status();
}

Status check(std::int64_t n, std::int64_t k, int rounds, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n || rounds < 1 || rounds > kMstopkMaxRounds) return Status::kBadSize;
    return workspace.bytes < mstopk_workspace_bytes(n, k) ? Status::kWorkspaceTooSmall : Status::kOk;
}

}  // namespace

std::size_t mstopk_workspace_bytes(std::int64_t n, std::int64_t) noexcept {
    return Workplace(nullptr, std::max<std::int64_t>(n, 0)).bytes;
}

Status mstopk(ConstArray x, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, void* values,
              Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, k, rounds, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return select(Plain<T>(x, n), n, k, rounds, indices, static_cast<T*>(values), workspace, stream);
    });
}

Status mstopk_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k, int rounds,
                         std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, k, rounds, workspace); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        return select(Fed<G, R>(grad, residual, out, n), n, k, rounds, indices, values, workspace, stream);
    });
}

}  // namespace hvd_compress::cuda
