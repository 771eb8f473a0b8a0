#include <algorithm>
#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/feedback.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {

Status accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int32_t* finite,
                  Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto, auto residual_tag) {
        using R = typename decltype(residual_tag)::Type;
        constexpr std::int64_t kChunk = 32768;
        const auto kernel = feedback_kernels().accumulate[static_cast<int>(grad.dtype)][sizeof(R) != sizeof(float)];
        const bool past_caches =
            goes_past_caches(out.data, residual.data, grad.data, sizeof(R) == sizeof(float) ? n * sizeof(R) : 0);
        std::atomic<bool> all_finite{true};
        parallel_for(divided_up(n, kChunk), [&](std::int64_t chunk) {
            const Place place = chunk_of(chunk, kChunk, n);
            if (!kernel(grad.data, residual.data, out.data, place, past_caches)) all_finite = false;
        });
        *finite = all_finite;
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
