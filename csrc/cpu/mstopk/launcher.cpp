#include "../pool/sum_blocks.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/mstopk.hpp"

namespace hvd_compress::cpu {
namespace {

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

std::size_t mstopk_workspace_bytes(std::int64_t n) noexcept { return sums_bytes(n); }

Status magnitude_sum(ConstArray x, std::int64_t n, double* sum, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < mstopk_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    return dispatch(x.dtype, [&](auto tag) {
        const auto* const data = static_cast<const typename decltype(tag)::Type*>(x.data);
        double* const sums = static_cast<double*>(workspace.data);
        for_each_sum_block(n, sums,
                           [&](Place block) { return sum_of_block(data + block.begin, block.end - block.begin); });
        *sum = add_blocks(sums, divided_up(n, kSumBlock));
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
