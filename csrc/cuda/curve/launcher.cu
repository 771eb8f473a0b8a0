#include <algorithm>

#include "../sample/launch.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

struct Workplace {
    std::uint32_t *bins, *sample;
    Key* low;
    RowTotal* totals;
    std::size_t bytes;

    explicit Workplace(void* start) {
        Parts parts(start);
        bins = parts.take<std::uint32_t>(kCurveBins);
        sample = parts.take<std::uint32_t>(kSampleBins);
        low = parts.take<Key>(1);
        totals = parts.take<RowTotal>(kCurveRows);
        bytes = parts.bytes();
    }
};

}  // namespace

std::size_t curve_workspace_bytes(std::int64_t) noexcept { return Workplace(nullptr).bytes; }

Status magnitude_curve(ConstArray x, std::int64_t n, std::int64_t* counts, double* shares, Workspace workspace,
                       Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < curve_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const Workplace at(workspace.data);
        const Plain<T> source(x, n);
        launch(ClearCounts{at.bins, at.sample, at.low}, divided_up(kCurveBins, ClearCounts::kThreads), stream);
        if (n > kCurveAll) {
            const auto tail = static_cast<std::int64_t>(kCurveTail * static_cast<double>(n));
            launch_sample(source, n, at.sample, stream);
            launch(ChooseLow{at.low, at.sample, SampledRanks(n, tail).upper}, 1, stream);
        }
        using Kernel = CountMagnitudes<T>;
        // No more blocks than there is room for, as each has a window to clear and to hand over.
        const std::int64_t blocks = std::min(divided_up(n, CurveTile::kNumel), resident_blocks<Kernel>());
        launch(Kernel{source, at.low, at.bins}, blocks, stream);
        launch(SumRow{at.bins, at.low, at.totals}, kCurveRows, stream);
        launch(DrawRow{at.bins, at.low, at.totals, counts, shares}, kCurveRows, stream);
        return launch_status();
    });
}

}  // namespace hvd_compress::cuda
