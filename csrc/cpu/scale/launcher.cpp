#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/scale.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {

Status scale(Array x, std::int64_t n, float factor, std::int32_t* finite, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto) {
        constexpr std::int64_t kChunk = 32768;
        const auto kernel = scale_kernels().scale[static_cast<int>(x.dtype)];
        std::atomic<bool> all_finite{true};
        parallel_for(divided_up(n, kChunk), [&](std::int64_t chunk) {
            if (!kernel(x.data, factor, chunk_of(chunk, kChunk, n))) all_finite = false;
        });
        *finite = all_finite;
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
