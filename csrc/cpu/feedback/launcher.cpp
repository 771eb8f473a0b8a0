#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/feedback.hpp"
#include "kernel.hpp"

namespace hvd_compress::cpu {

Status accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int32_t* finite,
                  Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using G = typename decltype(grad_tag)::Type;
        using R = typename decltype(residual_tag)::Type;
        const auto largest = accumulate_kernel(static_cast<const G*>(grad.data), static_cast<const R*>(residual.data),
                                               static_cast<R*>(out.data), n);
        *finite = largest < Traits<R>::kInfinityKey;
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
