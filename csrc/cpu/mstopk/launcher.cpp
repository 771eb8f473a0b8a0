#include <algorithm>

#include "../pool/sum_blocks.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/mstopk.hpp"
#include "hvd_compress/topk.hpp"

namespace hvd_compress::cpu {
namespace {

using Key = std::uint32_t;

// So many of the largest are looked at in each round: below the least of them nothing matters, as a rule.
std::int64_t candidates_for(std::int64_t n, std::int64_t k) { return std::min(n, k + k / 4 + 64); }

struct Workplace {
    double* sums;
    std::int32_t* indices;
    Key* keys;
    void* values;  // of any dtype
    Workspace topk;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n, std::int64_t k) {
        const std::int64_t count = candidates_for(n, k);
        std::size_t used = 0;
        const auto take = [&](std::size_t size) {
            char* const at = static_cast<char*>(start) + used;
            used += (size + 63) / 64 * 64;
            return static_cast<void*>(at);
        };
        sums = static_cast<double*>(take(sums_bytes(n)));
        indices = static_cast<std::int32_t*>(take(static_cast<std::size_t>(count) * sizeof(std::int32_t)));
        keys = static_cast<Key*>(take(static_cast<std::size_t>(count) * sizeof(Key)));
        values = take(static_cast<std::size_t>(count) * sizeof(float));
        topk.bytes = std::max(topk_workspace_bytes(n, count), topk_workspace_bytes(n, k));
        topk.data = take(topk.bytes);
        bytes = used;
    }
};

template <class T>
double sum_of_block(const T* x, std::int64_t count) {
    double lanes[kSumLanes] = {};
    for (std::int64_t row = 0; row < count; row += kSumLanes) {
        const std::int64_t width = std::min(kSumLanes, count - row);
        for (std::int64_t lane = 0; lane < width; ++lane) {
            lanes[lane] += static_cast<double>(from_bits(to_bits(to_float(x[row + lane])) & 0x7fffffffu));
        }
    }
    return add_lanes(lanes, kSumLanes);
}

// All elements from `first` on are selected, and of those from `last` on so many.
struct Range {
    Key first, last;
    std::int64_t wanted;
};

Range bisect(const Key* keys, std::int64_t count, std::int64_t k, double mean, double top, int rounds) {
    Range range{~Key{0}, 0, k};
    double low = 0.0, high = 1.0;
    for (int round = 0; round < rounds; ++round) {
        const double middle = low + (high - low) / 2;
        const Key threshold = key_reaching(mean + middle * (top - mean));
        std::int64_t reached = 0;
        for (std::int64_t i = 0; i < count; ++i) reached += keys[i] >= threshold;
        if (reached <= k) {
            high = middle;
            range.first = threshold;
            range.wanted = k - reached;
        } else {
            low = middle;
            range.last = threshold;
        }
    }
    return range;
}

}  // namespace

std::size_t mstopk_workspace_bytes(std::int64_t n, std::int64_t k) noexcept {
    n = std::max<std::int64_t>(n, 0);
    return Workplace(nullptr, n, std::clamp<std::int64_t>(k, 0, n)).bytes;
}

// 12 bytes an fp32 element: for the candidates, for the mean, and where they do not do, to select.
Status mstopk(ConstArray x, std::int64_t n, std::int64_t k, int rounds, std::int32_t* indices, void* values,
              Workspace workspace, Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (k < 0 || k > n || rounds < 1 || rounds > kMstopkMaxRounds) return Status::kBadSize;
    if (workspace.bytes < mstopk_workspace_bytes(n, k)) return Status::kWorkspaceTooSmall;
    const Workplace at(workspace.data, n, k);
    if (k == 0 || k == n) return topk(x, n, k, indices, values, at.topk, stream);
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const T* const data = static_cast<const T*>(x.data);
        const T* const candidates = static_cast<const T*>(at.values);
        const std::int64_t count = candidates_for(n, k);
        if (const Status status = topk(x, n, count, at.indices, at.values, at.topk, stream); status != Status::kOk)
            return status;
        Key least = ~Key{0}, largest = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            at.keys[i] = Traits<float>::key(to_float(candidates[i]));
            least = std::min(least, at.keys[i]);
            largest = std::max(largest, at.keys[i]);
        }
        if (largest >= Traits<float>::kInfinityKey) return topk(x, n, k, indices, values, at.topk, stream);
        for_each_sum_block(n, at.sums,
                           [&](Place block) { return sum_of_block(data + block.begin, block.end - block.begin); });
        const double mean = add_blocks(at.sums, divided_up(n, kSumBlock)) / static_cast<double>(n);
        const auto top = static_cast<double>(from_bits(largest));
        Range range = bisect(at.keys, count, k, std::min(mean, top), top, rounds);  // rounded, the mean may be above
        std::int64_t found = 0;
        const auto select = [&](std::int64_t index, Key key) {
            if (key < range.first && (key < range.last || range.wanted-- <= 0)) return;
            if (found == k) return;  // someone writes to x meanwhile
            indices[found] = static_cast<std::int32_t>(index);
            static_cast<T*>(values)[found++] = data[index];
        };
        if (range.last > least || count == n) {
            for (std::int64_t i = 0; i < count; ++i) select(at.indices[i], at.keys[i]);
        } else {
            for (std::int64_t i = 0; i < n; ++i) select(i, Traits<float>::key(to_float(data[i])));
        }
        return found == k ? Status::kOk : Status::kChangedMeanwhile;
    });
}

}  // namespace hvd_compress::cpu
