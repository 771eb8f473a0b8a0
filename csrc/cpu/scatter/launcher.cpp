#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/scatter.hpp"
#include "index_check.hpp"
#include "kernel.hpp"

namespace hvd_compress::cpu {
namespace {

Status check(const std::int32_t* indices, std::int64_t count, std::int64_t n, std::int64_t* first_bad) {
    if (count < 0) return Status::kBadSize;
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    *first_bad = find_bad_index(indices, count, n);
    return *first_bad < 0 ? Status::kOk : Status::kIndexOutOfRange;
}

Status unless_changed(bool good) { return good ? Status::kOk : Status::kChangedMeanwhile; }

// Calls body(values, out) with typed pointers; it returns whether indices stayed good.
template <class Body>
Status dispatch_scatter(ConstArray values, Array out, Body&& body) {
    return dispatch_pair(out.dtype, values.dtype, [&](auto out_tag, auto values_tag) {
        using T = typename decltype(out_tag)::Type;
        using V = typename decltype(values_tag)::Type;
        return unless_changed(body(static_cast<const V*>(values.data), static_cast<T*>(out.data)));
    });
}

}  // namespace

Status gather(ConstArray x, std::int64_t n, const std::int32_t* indices, std::int64_t count, void* values,
              std::int64_t* first_bad, Stream) noexcept {
    if (const Status status = check(indices, count, n, first_bad); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return unless_changed(
            gather_kernel(static_cast<const T*>(x.data), Indices(indices, n), count, static_cast<T*>(values)));
    });
}

Status take(Array x, std::int64_t n, const std::int32_t* indices, std::int64_t count, float* values,
            std::int64_t* first_bad, Stream) noexcept {
    if (const Status status = check(indices, count, n, first_bad); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return unless_changed(take_kernel(static_cast<T*>(x.data), Indices(indices, n), count, values));
    });
}

Status scatter_add(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                   float scale, std::int64_t* first_bad, Stream) noexcept {
    if (const Status status = check(indices, count, n, first_bad); status != Status::kOk) return status;
    return dispatch_scatter(values, out, [=](const auto* source, auto* target) {
        return scatter_add_kernel(Indices(indices, n), source, count, target, scale);
    });
}

Status scatter_set(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                   float scale, std::int64_t* first_bad, Stream) noexcept {
    if (const Status status = check(indices, count, n, first_bad); status != Status::kOk) return status;
    return dispatch_scatter(values, out, [=](const auto* source, auto* target) {
        return scatter_set_kernel(Indices(indices, n), source, count, target, scale);
    });
}

}  // namespace hvd_compress::cpu
