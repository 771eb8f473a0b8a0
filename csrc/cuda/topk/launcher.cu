#include <algorithm>
#include <iterator>

#include "../launch.hpp"
#include "../sample/launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/topk.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

constexpr std::int64_t kMinSampled = 16384;  // fewer elements are not worth a sample

struct Workplace {
    State* state;
    TileRow* rows;
    std::uint32_t *bins, *sample;
    Candidates found;
    std::int64_t tiles;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n, std::int64_t k) {
        Parts parts(start);
        const bool sampled = n >= kMinSampled;
        tiles = divided_up(n, kTopkTile);
        state = parts.take<State>(1);
        rows = parts.take<TileRow>(tiles);
        bins = parts.take<std::uint32_t>(std::size(kDigitShifts) * kDigitBins);
        sample = parts.take<std::uint32_t>(sampled ? kSampleBins : 0);
        found.capacity = sampled ? std::min(n, 2 * k + n / 64) : 0;  // more are not worth setting apart
        found.indices = parts.take<std::int32_t>(found.capacity);
        found.values = parts.take<float>(found.capacity);
        bytes = parts.bytes();
    }
};

template <class S, class Source>
Status select(Source source, std::int64_t n, std::int64_t k, std::int32_t* indices, S* selected, Workspace workspace,
              Stream stream) {
    const Workplace at(workspace.data, n, k);
    constexpr std::int64_t kDigits = std::size(kDigitShifts);
    const bool sampled = at.found.capacity > 0 && k > 0 && k < n;
    launch(Begin{at.state, at.bins, at.sample, kDigits * kDigitBins, sampled ? kSampleBins : 0, k}, 16, stream);
    if (sampled) {
        launch_sample(source, n, k, at.sample, &at.state->low, stream);
    }
    launch(Collect<Source>{source, at.state, at.rows, at.found}, at.tiles, stream);
    if (k == 0) return launch_status();
    launch(PutBack<Source>{source, at.state, at.rows, at.found, k}, at.tiles, stream);
    const Elements<Source> elements{source, at.state, at.rows, at.found, n, k};
    int known = 31;
    for (std::int64_t digit = 0; digit < kDigits; ++digit) {
        const int shift = kDigitShifts[digit], bits = known - shift;
        std::uint32_t* const bins = at.bins + digit * kDigitBins;
        launch(CountDigit<Source>{elements, at.tiles, shift, bits, bins}, std::min<std::int64_t>(at.tiles, 1024),
               stream);
        launch(ChooseDigit{at.state, bins, bits}, 1, stream);
        known = shift;
    }
    launch(Rank<Source>{elements, at.rows}, at.tiles, stream);
    launch(PlaceTiles{at.state, at.rows, at.tiles}, 1, stream);
    launch(Emit<Source, S>{elements, indices, selected}, at.tiles, stream);
    return launch_status();
}

Status check(std::int64_t n, std::int64_t k, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n) return Status::kBadSize;
    return workspace.bytes < topk_workspace_bytes(n, k) ? Status::kWorkspaceTooSmall : Status::kOk;
}

}  // namespace

std::size_t topk_workspace_bytes(std::int64_t n, std::int64_t k) noexcept {
    n = std::max<std::int64_t>(n, 0);
    return Workplace(nullptr, n, std::clamp<std::int64_t>(k, 0, n)).bytes;
}

Status topk(ConstArray x, std::int64_t n, std::int64_t k, std::int32_t* indices, void* values, Workspace workspace,
            Stream stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return select(Plain<T>(x, n), n, k, indices, static_cast<T*>(values), workspace, stream);
    });
}

Status topk_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k,
                       std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, k, workspace); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        return select(Fed<G, R>(grad, residual, out, n), n, k, indices, values, workspace, stream);
    });
}

}  // namespace hvd_compress::cuda
