#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/blocks.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kChunk = 32 * kMaxBlock;  // elements that a thread takes in turn

Status check(std::int64_t n, BlockFormat format, int sources) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_block_format(format) || sources < 0) return Status::kBadSize;
    return sources > kMaxBlockSources ? Status::kTooLarge : Status::kOk;
}

template <class Body>
void for_each_chunk(std::int64_t n, const Body& body) {
    parallel_for(divided_up(n, kChunk), [&](std::int64_t chunk) { body(chunk_of(chunk, kChunk, n)); });
}

}  // namespace

Status block_quantize(ConstArray grad, ConstArray residual, Array out, std::int64_t n, BlockFormat format,
                      const RandomKey* key, std::uint8_t* codes, std::uint16_t* units, Stream) noexcept {
    if (const Status status = check(n, format, 0); status != Status::kOk) return status;
    return dispatch(grad.dtype, [&](auto) {
        const auto kernel = block_kernels().quantize[static_cast<int>(grad.dtype)];
        const std::size_t kept_bytes = out.data != nullptr ? n * sizeof(float) : 0;
        const bool past_caches = goes_past_caches(out.data, residual.data, grad.data, kept_bytes);
        const BlockTarget target{format, key, codes, units, static_cast<float*>(out.data), past_caches};
        for_each_chunk(
            n, [&](Place place) { kernel(grad.data, static_cast<const float*>(residual.data), place, target); });
        return Status::kOk;
    });
}

Status block_sum(const BlockCodes* sources, int count, std::int64_t n, BlockFormat format, float weight, Array out,
                 std::int32_t* finite, Stream) noexcept {
    if (const Status status = check(n, format, count); status != Status::kOk) return status;
    if (count < 1) return Status::kBadSize;
    return dispatch(out.dtype, [&](auto tag) {
        constexpr bool kFloat = sizeof(typename decltype(tag)::Type) == sizeof(float);
        const auto kernel = block_kernels().sum[static_cast<int>(out.dtype)];
        const bool past_caches = goes_past_caches(out.data, nullptr, nullptr, kFloat ? n * sizeof(float) : 0);
        std::atomic<bool> all{true};
        for_each_chunk(n, [&](Place place) {
            if (!kernel(sources, count, format, weight, out.data, place, past_caches)) {
                all.store(false, std::memory_order_relaxed);
            }
        });
        *finite = all.load(std::memory_order_relaxed) ? 1 : 0;
        return Status::kOk;
    });
}

Status block_sum_quantize(ConstArray own, const BlockCodes* others, int count, int place, Array rest, std::int64_t n,
                          BlockFormat format, const RandomKey* key, std::uint8_t* codes, std::uint16_t* units,
                          Stream) noexcept {
    if (const Status status = check(n, format, count); status != Status::kOk) return status;
    if (place < 0 || place > count) return Status::kBadSize;
    return dispatch(own.dtype, [&](auto) {
        const auto kernel = block_kernels().sum_quantize[static_cast<int>(own.dtype)];
        const BlockTarget target{format, key, codes, units, static_cast<float*>(rest.data), false};
        for_each_chunk(n, [&](Place chunk) { kernel(own.data, {others, count, place}, chunk, target); });
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
