#include <algorithm>

#include "../feedback/kernels.hpp"
#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

// Addresses travel with the launch: few in little more than the usual, many in the 32 KB that kernels may have since
// CUDA 12.1, 4 KB before.
constexpr int kFewSources = 32;
#if defined(CUDART_VERSION) && CUDART_VERSION < 12010
constexpr int kManySources = 224;
#else
constexpr int kManySources = kMaxBlockSources;
#endif

Status check(std::int64_t n, BlockFormat format, int sources) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_block_format(format) || sources < 0) return Status::kBadSize;
    return sources > kManySources ? Status::kTooLarge : Status::kOk;
}

// The block is kBlockGroup << this.
int shift_of(BlockFormat format) {
    int shift = 0;
    while (kBlockGroup << shift < format.block) ++shift;
    return shift;
}

BlockTarget target_of(std::int64_t n, BlockFormat format, const RandomKey* key, std::uint8_t* codes,
                      std::uint16_t* units) {
    return {n, shift_of(format), key != nullptr, key != nullptr ? *key : RandomKey{}, codes, units};
}

bool are_words(const void* codes) { return reinterpret_cast<std::uintptr_t>(codes) % sizeof(std::uint32_t) == 0; }

bool are_words(const BlockCodes* sources, int count) {
    return std::all_of(sources, sources + count, [](const BlockCodes& source) { return are_words(source.codes); });
}

template <int capacity>
BlockSources<capacity> sources_of(const BlockCodes* sources, int count, BlockFormat format) {
    BlockSources<capacity> found{};
    std::copy_n(sources, count, found.source);
    found.count = count;
    found.shift = shift_of(format);
    return found;
}

template <int number>
struct Number {
    static constexpr int value = number;
};

template <class Body>
Status dispatch_most(int most, const Body& body) {
    switch (most) {
        case 127:
            return body(Number<127>{});
        case 7:
            return body(Number<7>{});
        case 3:
            return body(Number<3>{});
        case 2:
            return body(Number<2>{});
        default:
            return body(Number<1>{});
    }
}

template <class Body>
Status dispatch_fit(BlockFormat format, const Body& body) {
    if (format.fit == BlockFit::kTernary) return body(TernaryFit{});
    return dispatch_most(format.most, [&](auto most) { return body(LargestFit<decltype(most)::value>{}); });
}

template <class Body>
Status dispatch_count(int count, const Body& body) {
    return count <= kFewSources ? body(Number<kFewSources>{}) : body(Number<kManySources>{});
}

}  // namespace

Status block_quantize(ConstArray grad, ConstArray residual, Array out, std::int64_t n, BlockFormat format,
                      const RandomKey* key, std::uint8_t* codes, std::uint16_t* units, Stream stream) noexcept {
    if (const Status status = check(n, format, 0); status != Status::kOk) return status;
    const BlockTarget target = target_of(n, format, key, codes, units);
    return dispatch(grad.dtype, [&](auto tag) {
        using G = typename decltype(tag)::Type;
        const FedBlocks<G> source{static_cast<const G*>(grad.data), static_cast<const float*>(residual.data),
                                  static_cast<float*>(out.data), n};
        const bool aligned =
            is_aligned(source.grad) && is_aligned(source.residual) && is_aligned(source.out) && are_words(codes);
        return dispatch_fit(format, [&](auto fit) {
            launch(QuantizeBlocks<FedBlocks<G>, decltype(fit)>{source, target, aligned}, divided_up(n, kBlockTile),
                   stream);
            return launch_status();
        });
    });
}

Status block_sum(const BlockCodes* sources, int count, std::int64_t n, BlockFormat format, float weight, Array out,
                 std::int32_t* finite, Stream stream) noexcept {
    if (const Status status = check(n, format, count); status != Status::kOk) return status;
    if (count < 1) return Status::kBadSize;
    launch(SetFinite{finite}, 1, stream);
    return dispatch(out.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        T* const target = static_cast<T*>(out.data);
        const bool aligned = is_aligned(target) && are_words(sources, count);
        return dispatch_most(format.most, [&](auto most) {
            return dispatch_count(count, [&](auto capacity) {
                constexpr int kCapacity = decltype(capacity)::value;
                using Kernel = SumBlocks<T, decltype(most)::value, kCapacity>;
                launch(Kernel{sources_of<kCapacity>(sources, count, format), target, n, aligned, weight, finite},
                       divided_up(n, kBlockTile), stream);
                return launch_status();
            });
        });
    });
}

Status block_sum_quantize(ConstArray own, const BlockCodes* others, int count, int place, Array rest, std::int64_t n,
                          BlockFormat format, const RandomKey* key, std::uint8_t* codes, std::uint16_t* units,
                          Stream stream) noexcept {
    if (const Status status = check(n, format, count); status != Status::kOk) return status;
    if (place < 0 || place > count) return Status::kBadSize;
    const BlockTarget target = target_of(n, format, key, codes, units);
    return dispatch(own.dtype, [&](auto tag) {
        using G = typename decltype(tag)::Type;
        const G* const mine = static_cast<const G*>(own.data);
        float* const left = static_cast<float*>(rest.data);
        const bool aligned = is_aligned(mine) && is_aligned(left) && are_words(codes) && are_words(others, count);
        return dispatch_fit(format, [&](auto fit) {
            return dispatch_count(count, [&](auto capacity) {
                constexpr int kCapacity = decltype(capacity)::value;
                using Fit = decltype(fit);
                using Source = SummedBlocks<G, Fit::kMost, kCapacity>;
                const Source source{mine, sources_of<kCapacity>(others, count, format), place, left, n};
                launch(QuantizeBlocks<Source, Fit>{source, target, aligned}, divided_up(n, kBlockTile), stream);
                return launch_status();
            });
        });
    });
}

}  // namespace hvd_compress::cuda
