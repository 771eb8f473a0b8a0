#include "../feedback/kernels.hpp"
#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/scale.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {

Status scale(Array x, std::int64_t n, float factor, std::int32_t* finite, Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using Source = Scaled<typename decltype(tag)::Type>;
        using Kernel = Accumulated<Source>;
        launch(SetFinite{finite}, 1, stream);
        launch(Kernel{Source(x, factor, n), finite}, divided_up(n, Kernel::Elements::kNumel), stream);
        return launch_status();
    });
}

}  // namespace hvd_compress::cuda
