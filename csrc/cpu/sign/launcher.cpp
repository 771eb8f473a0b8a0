#include "../pool/sum_blocks.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/sign.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

float mean(const double* sums, std::int64_t n) {
    if (n == 0) return 0.0f;
    return static_cast<float>(add_blocks(sums, divided_up(n, kSumBlock)) / static_cast<double>(n));
}

}  // namespace

std::size_t sign_workspace_bytes(std::int64_t n) noexcept { return sums_bytes(n); }

Status sign_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::uint8_t* bits,
                       float* scale, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < sign_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto, auto residual_tag) {
        constexpr bool kFloat = sizeof(typename decltype(residual_tag)::Type) == sizeof(float);
        const SignKernels& kernels = sign_kernels();
        const auto correct = kernels.correct[static_cast<int>(grad.dtype)][!kFloat];
        const bool past_caches = goes_past_caches(out.data, residual.data, grad.data, kFloat ? n * sizeof(float) : 0);
        double* sums = static_cast<double*>(workspace.data);
        for_each_sum_block(n, sums, [&](Place block) {
            return correct(grad.data, residual.data, out.data, block, past_caches, bits);
        });
        const float sent = *scale = mean(sums, n);
        const auto subtract_sent = kernels.subtract_sent[static_cast<int>(out.dtype)];
        for_each_chunk_backwards(n, [&](Place chunk) { subtract_sent(out.data, chunk, sent); });
        return Status::kOk;
    });
}

Status sign_add(const std::uint8_t* bits, const float* scale, Array out, std::int64_t n, float weight,
                Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return dispatch(out.dtype, [&](auto) {
        const auto add = sign_kernels().add[static_cast<int>(out.dtype)];
        const float step = weight * *scale;
        parallel_for(divided_up(n, kSumChunk),
                     [&](std::int64_t chunk) { add(bits, out.data, chunk_of(chunk, kSumChunk, n), step); });
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
