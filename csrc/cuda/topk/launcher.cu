#include <algorithm>
#include <atomic>

#include "../launch.hpp"
#include "../sample/launch.hpp"
#include "collect.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/topk.hpp"
#include "launch.hpp"
#include "queue.hpp"

namespace hvd_compress::cuda {
namespace {

constexpr std::int64_t kMinSampled = 16384;  // fewer elements are not worth a sample

// One block with a queue is done before ten launches are, which take 36 us of an H200: so long as it has few elements,
// or still fewer where it has to keep many of them. `make gpu-check` measures both ways.
constexpr std::int64_t kQueueMaxNumel = 49152, kQueueFewK = 512, kQueueMaxNumelOfMany = 16384;

std::atomic<int> forced_way{static_cast<int>(TopkWay::kAuto)};

TopkWay way_for(std::int64_t n, std::int64_t k) {
    const auto forced = static_cast<TopkWay>(forced_way.load());
    const bool is_short = n <= (k <= kQueueFewK ? kQueueMaxNumel : kQueueMaxNumelOfMany);
    if (k <= kQueueMaxK && (forced == TopkWay::kQueue || (forced == TopkWay::kAuto && is_short)))
        return TopkWay::kQueue;
    return n >= kMinSampled && k > 0 && k < n && forced != TopkWay::kRadix ? TopkWay::kBracket : TopkWay::kRadix;
}

struct Workplace {
    State* state;
    TileRow* rows;
    Ranks* ranks;
    DigitBins bins;
    std::uint32_t* sample;
    Candidates found;
    std::int64_t tiles, bin_count;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n, std::int64_t k) {
        Parts parts(start);
        tiles = divided_up(n, TopkTile::kNumel);
        state = parts.take<State>(1);
        rows = parts.take<TileRow>(tiles);
        ranks = parts.take<Ranks>(tiles);
        bin_count = 3 * kDigitBins;
        bins.all = parts.take<std::uint32_t>(bin_count);
        bins.first = bins.all + kDigitBins;
        bins.second = bins.first + kDigitBins;
        sample = parts.take<std::uint32_t>(kSampleBins);
        found.capacity = candidates_room(n, k);
        found.indices = parts.take<std::int32_t>(found.capacity);
        found.values = parts.take<float>(found.capacity);
        bytes = parts.bytes();
    }
};

// Steps 1 to 3 find candidates, 4 the k largest among them, 5 hands them out in the order of their indices.
// 1. Bracket: a sample says between which keys the k-th largest lies; one pass corrects, and collects from there on.
//    12 bytes an fp32 element, and about 40 for each of the k.
// 1. Or radix, without a sample: one pass corrects, and counts by the keys' first 12 bits.
// 2. Where the sample has misled, the radix selection begins after all, on what the first pass has left: 4 bytes.
// 3. Radix: what begins with the bits of the k-th largest or with larger ones is collected: 4 bytes.
// If even that is too much, as where most elements are equal, step 4 and 5 look at all elements: 16 bytes.
template <class S, class Source>
Status select(Source source, std::int64_t n, std::int64_t k, std::int32_t* indices, S* selected, Workspace workspace,
              Stream stream) {
    const TopkWay way = way_for(n, k);
    if (way == TopkWay::kQueue) {
        launch(Queue<Source, S>{source, n, k, indices, selected}, 1, stream);
        return launch_status();
    }
    const Workplace at(workspace.data, n, k);
    const std::int64_t few = std::min(at.tiles, kMostBlocks);
    launch(Begin{at.state, at.bins.all, at.sample, at.bin_count, kSampleBins, k}, 16, stream);
    if (way == TopkWay::kBracket) {
        const SampledRanks ranks(n, k);
        launch_sample(source, n, at.sample, stream);
        launch(ChooseRange{at.state, at.sample, ranks.upper, ranks.lower}, 1, stream);
        launch(Collect<Source, false>{source, at.state, at.rows, at.found, at.tiles}, at.tiles, stream);
        launch(CountAll<Source, true>{source, at.state, at.rows, at.found, at.tiles, n, k, at.bins.all}, few, stream);
    } else {
        launch(CountAll<Source, false>{source, at.state, at.rows, at.found, at.tiles, n, k, at.bins.all}, few, stream);
        if (k == 0) return launch_status();
    }
    launch(Collect<Source, true>{source, at.state, at.rows, at.found, at.tiles}, few, stream);
    const Elements<Source> elements{source, at.state, at.rows, at.found, n, at.tiles};
    launch(CountDigit<Source, true>{elements, at.state, at.bins.first, k}, few, stream);
    launch(CountDigit<Source, false>{elements, at.state, at.bins.second, k}, few, stream);
    launch_emit(elements, at.state, at.ranks, k, indices, selected, stream);
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

void topk_force(TopkWay way) noexcept { forced_way.store(static_cast<int>(way)); }

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
