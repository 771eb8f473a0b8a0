#include <algorithm>
#include <type_traits>

#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/scatter.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

template <Access kind, class T, class V, class X, class Values>
Status at_indices(X* x, std::int64_t n, const std::int32_t* indices, Values* values, std::int64_t count, float scale,
                  Fault fault, Stream stream) {
    using Kernel = AtIndices<kind, T, V>;
    launch(Kernel{x, n, indices, values, count, scale, fault}, divided_up(count, Kernel::kThreads), stream);
    return launch_status();
}

Status check(std::int64_t n, std::int64_t count) { return count < 0 ? Status::kBadSize : check_numel(n); }

template <Access kind>
Status scatter(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
               float scale, Fault fault, Stream stream) {
    if (const Status status = check(n, count); status != Status::kOk) return status;
    return dispatch_pair(out.dtype, values.dtype, [&](auto out_tag, auto values_tag) {
        using T = typename decltype(out_tag)::Type;
        using V = typename decltype(values_tag)::Type;
        return at_indices<kind, T, V>(static_cast<T*>(out.data), n, indices, static_cast<const V*>(values.data), count,
                                      scale, fault, stream);
    });
}

}  // namespace

Status scatter_lists(const SparseList* lists, std::int64_t list_count, DType values, Array out, std::int64_t n,
                     float scale, bool clear, Fault fault, Stream stream) noexcept {
    if (list_count < 0) return Status::kBadSize;
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    for (std::int64_t list = 0; list < list_count; ++list) {
        if (lists[list].count < 0) return Status::kBadSize;
    }
    return dispatch_pair(out.dtype, values, [&](auto out_tag, auto values_tag) {
        using T = typename decltype(out_tag)::Type;
        using Kernel = AddLists<typename decltype(values_tag)::Type, T>;
        T* const target = static_cast<T*>(out.data);
        // At least one of each: without a list there may still be something to clear, without elements a bad index.
        const std::int64_t tiles = std::max<std::int64_t>(divided_up(n, Kernel::kTile), 1);
        const std::int64_t blocks = std::min(tiles, resident_blocks<Kernel>());
        std::int64_t done = 0;
        do {
            Lists now{};
            now.count = std::min(list_count - done, kListsAtOnce);
            now.first = done;
            std::copy_n(lists + done, now.count, now.list);
            launch(Kernel{now, target, n, scale, clear && done == 0, is_aligned(target), fault}, blocks, stream);
            done += now.count;
        } while (done < list_count);
        return launch_status();
    });
}

Status gather(ConstArray x, std::int64_t n, const std::int32_t* indices, std::int64_t count, void* values, Fault fault,
              Stream stream) noexcept {
    if (const Status status = check(n, count); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return at_indices<Access::kGather, T, T>(static_cast<const T*>(x.data), n, indices, static_cast<T*>(values),
                                                 count, 1.0f, fault, stream);
    });
}

Status take(Array x, std::int64_t n, const std::int32_t* indices, std::int64_t count, float* values, Fault fault,
            Stream stream) noexcept {
    if (const Status status = check(n, count); status != Status::kOk) return status;
    return dispatch(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return at_indices<Access::kTake, T, float>(static_cast<T*>(x.data), n, indices, values, count, 1.0f, fault,
                                                   stream);
    });
}

Status scatter_add(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                   float scale, Fault fault, Stream stream) noexcept {
    return scatter<Access::kAdd>(indices, values, count, out, n, scale, fault, stream);
}

Status scatter_set(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                   float scale, Fault fault, Stream stream) noexcept {
    return scatter<Access::kSet>(indices, values, count, out, n, scale, fault, stream);
}

}  // namespace hvd_compress::cuda
