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

constexpr std::int64_t slices_of(std::int64_t n) { return std::clamp<std::int64_t>(n / 131072, 1, kSlices); }

// The curve that is to be drawn from the bins of the bulk, of which a count stands for four elements, and of the tail.
struct Curve {
    const Count* bins;
    std::int64_t first_of_tail;
    std::int64_t* counts;
    double* shares;

    std::int64_t count_of(std::int64_t b) const {
        const std::int64_t bin = kCurveBins - 1 - b;
        return bin < first_of_tail ? std::int64_t{bins[bin]} * 4 : std::int64_t{bins[kCurveBins + bin]};
    }

    // Calls body(b, count, square) for the bins of a part that hold something.
    template <class Body>
    void each_of(std::int64_t part, Body body) const {
        for (std::int64_t b = part * kCurvePart; b < (part + 1) * kCurvePart; ++b) {
            const std::int64_t count = count_of(b);
            if (count != 0) body(b, count, curve_square(kCurveBins - 1 - b) * static_cast<double>(count));
        }
    }

    void draw() const {
        constexpr std::int64_t kParts = kCurveRows * kCurveRow;
        double before[kParts + 1] = {}, rows[kCurveRows];
        for (std::int64_t part = 0; part < kParts; ++part) {
            each_of(part, [&](std::int64_t, std::int64_t, double square) { before[part] += square; });
        }
        for (std::int64_t row = 0; row < kCurveRows; ++row)
            rows[row] = sums_before(before + row * kCurveRow, kCurveRow);
        const double all = before[kParts] = sums_before(rows, kCurveRows);
        for (std::int64_t part = 0; part < kParts; ++part) before[part] += rows[part / kCurveRow];
        counts[0] = 0;
        shares[0] = 0.0;
        if (all == 0.0) {
            std::fill_n(counts + 1, kCurveBins, 1);
            std::fill_n(shares + 1, kCurveBins, 1.0);
            return;
        }
        std::int64_t found = 0;
        for (std::int64_t part = 0; part < kParts; ++part) {
            const std::int64_t first = part * kCurvePart;
            double sum = before[part];
            std::int64_t at = first;
            const auto fill = [&](std::int64_t end) {
                const double share = curve_share(sum, before[part + 1], all);
                for (; at < end; ++at) {
                    counts[at + 1] = found;
                    shares[at + 1] = share;
                }
            };
            each_of(part, [&](std::int64_t b, std::int64_t count, double square) {
                fill(b);
                found += count;
                sum += square;
            });
            fill(first + kCurvePart);
        }
    }
};

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

Status magnitude_curve(ConstArray x, std::int64_t n, std::int64_t* counts, double* shares, Workspace workspace,
                       Stream) noexcept {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (workspace.bytes < curve_workspace_bytes(n)) return Status::kWorkspaceTooSmall;
    static_assert(kSampleBins <= kCurveBins && kSampleShift >= kCurveShift,
                  "a sample's bins are whole bins of a curve");
    static_assert(slices_of(kCurveAll + 1) * kOwnBins >= kAllSampleBins, "a sample's slices lie in those of the curve");
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
        // The bins of the bulk of all slices, and after them those of the tail, come to lie in the first slice.
        for (std::int64_t bin = 0; bin < kCurveBins; ++bin) {
            const std::int64_t place = bin < first_of_tail ? bin : kCurveBins + bin;
            for (std::int64_t slice = 1; slice < slices; ++slice) bins[place] += bins[slice * kOwnBins + place];
        }
        Curve{bins, first_of_tail, counts, shares}.draw();
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
