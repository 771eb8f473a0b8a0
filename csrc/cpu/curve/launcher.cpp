#include <algorithm>

#include "../pool/pool.hpp"
#include "../sample/sample.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cpu {
namespace {

// Each slice counts by itself. They begin at groups, so that the same elements are chosen however many there are.
constexpr std::int64_t kSlices = 8;
constexpr std::int64_t kOwnBins = 2 * kCurveBins;  // of a slice: those of the bulk, those of the tail

Place slice_of(std::int64_t slice, std::int64_t slices, std::int64_t n) {
    const std::int64_t begin = n * slice / slices / kCurveGroup * kCurveGroup;
    return {begin, slice + 1 == slices ? n : n * (slice + 1) / slices / kCurveGroup * kCurveGroup};
}

std::int64_t slices_of(std::int64_t n) { return std::clamp<std::int64_t>(n / 131072, 1, kSlices); }

// Where the elements that are all counted begin; 0 if the sample does not tell.
template <class T>
Key lowest_of_tail(const T* x, std::int64_t n, Count* bins) {
    const auto value_at = [=](std::int64_t i) { return to_float(x[i]); };
    const auto prefetch = [=](std::int64_t i) { __builtin_prefetch(x + i); };
    return sample_bracket(n, static_cast<std::int64_t>(kCurveTail * static_cast<double>(n)), value_at, prefetch, bins)
        .low;
}

}  // namespace

std::size_t curve_workspace_bytes(std::int64_t n) noexcept {
    return static_cast<std::size_t>(slices_of(n) * kOwnBins) * sizeof(Count);
}

Status magnitude_counts(ConstArray x, std::int64_t n, std::int64_t* counts, Workspace workspace, Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < curve_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    static_assert(kSampleBins <= kCurveBins && kSampleShift >= kCurveShift,
                  "a sample's bins are whole bins of a curve");
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const CurveKernels& kernels = curve_kernels();
        const int type = static_cast<int>(x.dtype);
        Count* bins = static_cast<Count*>(workspace.data);
        const Key low = n > kCurveAll ? lowest_of_tail(static_cast<const T*>(x.data), n, bins) : 0;
        const std::int64_t slices = slices_of(n);
        const std::int64_t first_of_tail = low >> kCurveShift;
        parallel_for(slices, [&](std::int64_t slice) {
            Count *bulk = bins + slice * kOwnBins, *tail = bulk + kCurveBins;
            std::fill_n(bulk, first_of_tail, Count{0});
            std::fill(tail + first_of_tail, tail + kCurveBins, Count{0});
            if (low != 0) {
                kernels.count_tail[type](x.data, slice_of(slice, slices, n), low, bulk, tail);
            } else {
                kernels.count_all[type](x.data, slice_of(slice, slices, n), tail);
            }
        });
        for (std::int64_t bin = 0; bin < kCurveBins; ++bin) {
            const std::int64_t place = bin < first_of_tail ? bin : kCurveBins + bin;
            for (std::int64_t slice = 1; slice < slices; ++slice) bins[place] += bins[slice * kOwnBins + place];
            counts[bin] = static_cast<std::int64_t>(bins[place]) * (bin < first_of_tail ? 4 : 1);
        }
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
