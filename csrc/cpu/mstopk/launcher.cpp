#include <algorithm>

#include "../topk/selection.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/mstopk.hpp"
#include "hvd_compress/topk.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

static_assert(kChunk % kSumBlock == 0);

struct Workplace {
    Magnitudes* blocks;
    double* sums;
    Workspace topk;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n, std::int64_t k) {
        const auto count = static_cast<std::size_t>(divided_up(n, kSumBlock));
        std::size_t used = 0;
        const auto take = [&](std::size_t size) {
            char* const at = static_cast<char*>(start) + used;
            used += (size + 63) / 64 * 64;
            return static_cast<void*>(at);
        };
        blocks = static_cast<Magnitudes*>(take(count * sizeof(Magnitudes)));
        sums = static_cast<double*>(take(count * sizeof(double)));
        topk.bytes = std::max(topk_workspace_bytes(n, k), topk_workspace_bytes(n, k + 1));
        topk.data = take(topk.bytes);
        bytes = used;
    }
};

Status check(std::int64_t n, std::int64_t k, int rounds, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n || rounds < 1 || rounds > kMstopkMaxRounds) return Status::kBadSize;
    return workspace.bytes < mstopk_workspace_bytes(n, k) ? Status::kWorkspaceTooSmall : Status::kOk;
}

// Where the rounds end. At most k elements reach a threshold if the next largest, of rank k + 1, does not: nothing
// needs to be counted.
Range bisect(Key next, double mean, double top, int rounds) {
    Range range{Key{1} << 31, 0};
    double low = 0.0, high = 1.0;
    for (int round = 0; round < rounds; ++round) {
        const double middle = low + (high - low) / 2;
        const Key threshold = key_reaching(mean + middle * (top - mean));
        if (next < threshold) {
            high = middle;
            range.first = threshold;
        } else {
            low = middle;
            range.last = threshold;
        }
    }
    return range;
}

// collect_block(block, low, found, magnitudes) sets the candidates of a block apart. 0 < k < n.
template <class ValueAt, class Prefetch, class CollectBlock, class PutBack>
Status select(std::int64_t n, std::int64_t k, int rounds, const Workplace& at, std::int32_t* indices, void* values,
              const Passes& passes, ValueAt value_at, Prefetch prefetch, CollectBlock collect_block, PutBack put_back) {
    Selection selection(n, k + 1, at.topk, indices, values, passes);
    const auto collect = [&](Place place, Key low, Candidates found) {
        std::int64_t count = 0;
        for (std::int64_t start = place.begin; start < place.end; start += kSumBlock) {
            const Place block{start, std::min(start + kSumBlock, place.end)};
            const Candidates rest{found.indices + count, found.values + count};
            count += collect_block(block, low, rest, &at.blocks[start / kSumBlock]);
        }
        return count;
    };
    selection.by_sample(value_at, prefetch, collect, put_back);
    Key largest = 0;
    const std::int64_t blocks = divided_up(n, kSumBlock);
    for (std::int64_t block = 0; block < blocks; ++block) {
        at.sums[block] = at.blocks[block].sum;
        largest = std::max(largest, at.blocks[block].largest);
    }
    if (largest >= Traits<float>::kInfinityKey) return selection.emit_largest(k);
    const double mean = add_blocks(at.sums, blocks) / static_cast<double>(n);
    const auto top = static_cast<double>(from_bits(largest));
    // Rounded, the mean may be above the largest.
    const Range range = bisect(selection.key_of_rank(k + 1), std::min(mean, top), top, rounds);
    selection.reach(range, put_back);
    return selection.emit(range, k);
}

}  // namespace

std::size_t mstopk_workspace_bytes(std::int64_t n, std::int64_t k) noexcept {
    n = std::max<std::int64_t>(n, 0);
    return Workplace(nullptr, n, std::clamp<std::int64_t>(k, 0, n)).bytes;
}

// 4 bytes an fp32 element; where the sample does not do, or the rounds end below it, 12 and more.
Status mstopk(ConstArray x, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, void* values,
              Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, k, rounds, workspace); status != Status::kOk) return status;
    const Workplace at(workspace.data, n, k);
    if (k == 0 || k == n) return topk(x, n, k, indices, values, at.topk, stream);
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const T* const source = static_cast<const T*>(x.data);
        const auto kernel = mstopk_kernels().collect[many(n, k)][static_cast<int>(x.dtype)];
        return select(
            n, k, rounds, at, indices, values, passes_over(x), [=](std::int64_t i) { return to_float(source[i]); },
            [=](std::int64_t i) { __builtin_prefetch(source + i); },
            [=](Place block, Key low, Candidates found, Magnitudes* magnitudes) {
                return kernel(source, block, low, found, magnitudes);
            },
            [](Candidates, std::int64_t) {});  // x is as it was
    });
}

// 12 bytes an fp32 element; where the sample does not do, or the rounds end below it, 20 and more.
Status mstopk_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int64_t k, int rounds,
                         std::int32_t* indices, float* values, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, k, rounds, workspace); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    const Workplace at(workspace.data, n, k);
    if (k == 0 || k == n) return topk_accumulate(grad, residual, out, n, k, indices, values, at.topk, stream);
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        const G* const g = static_cast<const G*>(grad.data);
        const R* const r = static_cast<const R*>(residual.data);
        R* const left = static_cast<R*>(out.data);
        const auto kernel =
            mstopk_kernels().accumulate_collect[many(n, k)][static_cast<int>(grad.dtype)][out.dtype != DType::kFloat32];
        const bool past_caches = goes_past_caches(left, r, g, sizeof(R) == sizeof(float) ? n * sizeof(R) : 0);
        return select(
            n, k, rounds, at, indices, values, passes_from(out),
            [=](std::int64_t i) { return to_float(corrected(g[i], r[i])); },
            [=](std::int64_t i) {
                __builtin_prefetch(g + i);
                __builtin_prefetch(r + i);
            },
            [=](Place block, Key low, Candidates found, Magnitudes* magnitudes) {
                return kernel(g, r, left, block, past_caches, low, found, magnitudes);
            },
            [=](Candidates from, std::int64_t count) {
                for (std::int64_t i = 0; i < count; ++i) left[from.indices[i]] = from_float<R>(from.values[i]);
            });
    });
}

}  // namespace hvd_compress::cpu
