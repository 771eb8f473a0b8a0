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

// Calls correct(kernels, residual's type is fp32, block, past_caches) for each block, and sets the scale.
template <class Correct>
Status correct_blocks(ConstArray grad, ConstArray kept, Array out, std::int64_t n, float* scale, Workspace workspace,
                      Correct correct) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < sign_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    if (out.dtype != kept.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, kept.dtype, [&](auto, auto kept_tag) {
        constexpr bool kFloat = sizeof(typename decltype(kept_tag)::Type) == sizeof(float);
        const bool past_caches = goes_past_caches(out.data, kept.data, grad.data, kFloat ? n * sizeof(float) : 0);
        double* sums = static_cast<double*>(workspace.data);
        for_each_sum_block(n, sums, [&](Place block) { return correct(sign_kernels(), !kFloat, block, past_caches); });
        *scale = mean(sums, n);
        return Status::kOk;
    });
}

// Backwards: what was written last may still be in a cache.
void subtract_sent(Array x, std::int64_t n, float sent) {
    const auto subtract = sign_kernels().subtract_sent[static_cast<int>(x.dtype)];
    for_each_chunk_backwards(n, [&](Place chunk) { subtract(x.data, chunk, sent); });
}

}  // namespace

std::size_t sign_workspace_bytes(std::int64_t n) noexcept { return sums_bytes(n); }

Status sign_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::uint8_t* bits,
                       float* scale, Workspace workspace, Stream) noexcept {
    const auto correct = [&](const SignKernels& kernels, int narrow, Place block, bool past_caches) {
        const auto kernel = kernels.correct[static_cast<int>(grad.dtype)][narrow];
        return kernel(grad.data, residual.data, out.data, block, past_caches, bits);
    };
    const Status status = correct_blocks(grad, residual, out, n, scale, workspace, correct);
    if (status == Status::kOk) subtract_sent(out, n, *scale);
    return status;
}

Status sign_accumulate_kept(ConstArray grad, ConstArray kept, const float* kept_scale, Array out, std::int64_t n,
                            std::uint8_t* bits, float* scale, Workspace workspace, Stream) noexcept {
    const auto correct = [&](const SignKernels& kernels, int narrow, Place block, bool past_caches) {
        const auto kernel = kernels.correct_kept[static_cast<int>(grad.dtype)][narrow];
        return kernel(grad.data, kept.data, out.data, block, past_caches, bits, *kept_scale);
    };
    return correct_blocks(grad, kept, out, n, scale, workspace, correct);
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
