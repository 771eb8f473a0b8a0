#include <algorithm>

#include "../isa/types.hpp"
#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/mstopk.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kChunk = 8 * kSumBlock;

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

}  // namespace

std::size_t mstopk_workspace_bytes(std::int64_t n) noexcept {
    return n > 0 ? static_cast<std::size_t>(divided_up(n, kSumBlock)) * sizeof(double) : 0;
}

Status magnitude_sum(ConstArray x, std::int64_t n, double* sum, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < mstopk_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return dispatch(x.dtype, [&](auto tag) {
        const auto* const data = static_cast<const typename decltype(tag)::Type*>(x.data);
        double* const sums = static_cast<double*>(workspace.data);
        parallel_for(divided_up(n, kChunk), [&](std::int64_t chunk) {
            const std::int64_t end = std::min((chunk + 1) * kChunk, n);
            for (std::int64_t start = chunk * kChunk; start < end; start += kSumBlock) {
                sums[start / kSumBlock] = sum_of_block(data + start, std::min(kSumBlock, end - start));
            }
        });
        *sum = add_blocks(sums, divided_up(n, kSumBlock));
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
