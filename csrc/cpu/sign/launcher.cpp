#include <numeric>

#include "compress.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/sign.hpp"
#include "unpack_add.hpp"

namespace hvd_compress::cpu {
namespace {

std::int64_t blocks(std::int64_t n) { return n / kSumBlock + (n % kSumBlock != 0); }

float mean(const double* sums, std::int64_t n) {
    if (n == 0) return 0.0f;
    return static_cast<float>(std::accumulate(sums, sums + blocks(n), 0.0) / static_cast<double>(n));
}

}  // namespace

std::size_t sign_workspace_bytes(std::int64_t n) noexcept {
    return n > 0 ? static_cast<std::size_t>(blocks(n)) * sizeof(double) : 0;
}

Status sign_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::uint8_t* bits,
                       float* scale, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < sign_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        R* left = static_cast<R*>(out.data);
        double* sums = static_cast<double*>(workspace.data);
        correct_blocks(static_cast<const G*>(grad.data), static_cast<const R*>(residual.data), left, n, bits, sums);
        *scale = mean(sums, n);
        subtract_sent(left, n, *scale);
        return Status::kOk;
    });
}

Status sign_add(const std::uint8_t* bits, const float* scale, Array out, std::int64_t n, float weight,
                Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return dispatch(out.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        unpack_add(bits, static_cast<T*>(out.data), n, weight * *scale);
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
