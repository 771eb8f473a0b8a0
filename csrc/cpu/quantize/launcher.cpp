#include <algorithm>
#include <cmath>

#include "../pool/sum_blocks.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/quantize.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

bool is_width(int bits) { return bits == 2 || bits == 4 || bits == 8; }

float norm_of(const double* blocks, std::int64_t count, Norm kind) {
    if (kind == Norm::kL2) return static_cast<float>(std::sqrt(add_blocks(blocks, count)));
    double largest = 0.0;
    for (std::int64_t block = 0; block < count; ++block) {
        // A NaN must come through: it is not less than anything.
        if (!(blocks[block] <= largest)) largest = blocks[block];
        if (std::isnan(largest)) break;
    }
    return static_cast<float>(largest);
}

}  // namespace

std::size_t quantize_workspace_bytes(std::int64_t n) noexcept { return sums_bytes(n); }

Status quantize_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, int bits, Norm kind,
                           RandomKey key, std::uint8_t* packed, float* norm, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_width(bits)) return Status::kBadSize;
    if (workspace.bytes < quantize_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto, auto residual_tag) {
        constexpr bool kFloat = sizeof(typename decltype(residual_tag)::Type) == sizeof(float);
        const QuantizeKernels& kernels = quantize_kernels();
        const auto correct = kernels.correct[static_cast<int>(grad.dtype)][!kFloat];
        const bool past_caches = goes_past_caches(out.data, residual.data, grad.data, kFloat ? n * sizeof(float) : 0);
        double* blocks = static_cast<double*>(workspace.data);
        for_each_sum_block(n, blocks, [&](Place block) {
            return correct(grad.data, residual.data, out.data, block, past_caches, kind);
        });
        *norm = norm_of(blocks, divided_up(n, kSumBlock), kind);
        const auto levels = static_cast<float>(quantize_levels(bits));
        const bool usable = std::isfinite(*norm) && *norm > 0.0f && std::isfinite(65536.0f * levels / *norm);
        if (!usable) {  // nothing but zeros, or something that is not finite: nothing is sent, all of it stays
            std::fill_n(packed, quantized_bytes(n, bits), std::uint8_t{0});
            return Status::kOk;
        }
        const Quantizer quantizer{65536.0f * levels / *norm, *norm / levels, bits, key};
        const auto quantize = kernels.quantize[static_cast<int>(out.dtype)];
        for_each_chunk_backwards(n, [&](Place chunk) { quantize(out.data, chunk, quantizer, packed); });
        return Status::kOk;
    });
}

Status quantize_add(const std::uint8_t* packed, const float* norm, Array out, std::int64_t n, int bits, float weight,
                    Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_width(bits)) return Status::kBadSize;
    return dispatch(out.dtype, [&](auto) {
        const auto add = quantize_kernels().add[static_cast<int>(out.dtype)];
        const float unit = *norm / static_cast<float>(quantize_levels(bits));
        parallel_for(divided_up(n, kSumChunk), [&](std::int64_t chunk) {
            add(packed, out.data, chunk_of(chunk, kSumChunk, n), bits, unit, weight);
        });
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
