#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

template <class T, int bits>
Status add(const std::uint8_t* packed, const float* norm, Array out, std::int64_t n, float weight, Stream stream) {
    T* const target = static_cast<T*>(out.data);
    const bool aligned = is_aligned(target) && is_aligned(packed);
    launch(AddNumbers<T, bits>{packed, norm, target, n, aligned, weight}, divided_up(n, kSumBlock), stream);
    return launch_status();
}

bool is_width(int bits) { return bits == 2 || bits == 4 || bits == 8; }

struct Workplace {
    double* sums;
    Quantizer* quantizer;
    std::size_t bytes;

    Workplace(void* start, std::int64_t n) {
        Parts parts(start);
        sums = parts.take<double>(divided_up(n, kSumBlock));
        quantizer = parts.take<Quantizer>(1);
        bytes = parts.bytes();
    }
};

}  // namespace

std::size_t quantize_workspace_bytes(std::int64_t n) noexcept { return Workplace(nullptr, n > 0 ? n : 0).bytes; }

Status quantize_accumulate(ConstArray grad, ConstArray residual, Array out, std::int64_t n, int bits, Norm kind,
                           RandomKey key, std::uint8_t* packed, float* norm, Workspace workspace,
                           Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_width(bits)) return Status::kBadSize;
    if (workspace.bytes < quantize_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    if (out.dtype != residual.dtype) return Status::kBadDType;
    return dispatch_pair(grad.dtype, residual.dtype, [&](auto grad_tag, auto residual_tag) {
        using R = typename decltype(residual_tag)::Type;
        using Source = Fed<typename decltype(grad_tag)::Type, R>;
        const Workplace at(workspace.data, n);
        launch(CorrectForNorm<Source>{Source(grad, residual, out, n), kind, at.sums}, divided_up(n, kSumBlock), stream);
        launch(FindNorm{at.sums, n, kind, static_cast<float>(quantize_levels(bits)), norm, at.quantizer}, 1, stream);
        launch(Quantize<R>{static_cast<R*>(out.data), n, at.quantizer, key, bits, packed},
               divided_up(n, Quantize<R>::kTile), stream);
        return launch_status();
    });
}

Status quantize_add(const std::uint8_t* packed, const float* norm, Array out, std::int64_t n, int bits, float weight,
                    Stream stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_width(bits)) return Status::kBadSize;
    return dispatch(out.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        switch (bits) {
            case 2:
                return add<T, 2>(packed, norm, out, n, weight, stream);
            case 4:
                return add<T, 4>(packed, norm, out, n, weight, stream);
            default:
                return add<T, 8>(packed, norm, out, n, weight, stream);
        }
    });
}

}  // namespace hvd_compress::cuda
