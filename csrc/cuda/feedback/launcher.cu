#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/feedback.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {

Status accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, std::int32_t* finite,
                  Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using Source = Fed<typename decltype(grad_tag)::Type, typename decltype(residual_tag)::Type>;
        using Kernel = Accumulated<Source>;
        launch(SetFinite{finite}, 1, stream);
        launch(Kernel{Source(grad, residual, out, n), finite}, divided_up(n, Kernel::Elements::kNumel), stream);
        return launch_status();
    });
}

}  // namespace hvd_compress::cuda
