#include "hvd_compress/scatter.hpp"

#include <pybind11/stl.h>

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

std::int64_t gather(Address x, int dtype, std::int64_t n, Address indices, std::int64_t count, Address values) {
    std::int64_t first_bad = -1;
    const Status status = cpu::gather(const_array(x, dtype), n, pointer<const std::int32_t>(indices), count,
                                      pointer<void>(values), &first_bad, nullptr);
    return check_indices(status, first_bad);
}

std::int64_t take(Address x, int dtype, std::int64_t n, Address indices, std::int64_t count, Address values) {
    std::int64_t first_bad = -1;
    const Status status = cpu::take(array(x, dtype), n, pointer<const std::int32_t>(indices), count,
                                    pointer<float>(values), &first_bad, nullptr);
    return check_indices(status, first_bad);
}

template <Scatter<std::int64_t*>* scatter>
std::int64_t scatter_with(Address indices, Address values, int values_dtype, std::int64_t count, Address out,
                          int out_dtype, std::int64_t n, float scale) {
    std::int64_t first_bad = -1;
    const Status status = scatter(pointer<const std::int32_t>(indices), const_array(values, values_dtype), count,
                                  array(out, out_dtype), n, scale, &first_bad, nullptr);
    return check_indices(status, first_bad);
}

// Each list is (address of indices, address of values, count). Returns (bad list, position), or (-1, -1).
std::pair<std::int64_t, std::int64_t> scatter_lists(
    const std::vector<std::tuple<Address, Address, std::int64_t>>& addresses, int values_dtype, Address out,
    int out_dtype, std::int64_t n, float scale, bool clear) {
    std::vector<SparseList> lists;
    for (const auto& [indices, values, count] : addresses) {
        lists.push_back({pointer<const std::int32_t>(indices), pointer<const void>(values), count});
    }
    std::int64_t bad_list = -1, first_bad = -1;
    const Status status =
        cpu::scatter_lists(lists.data(), static_cast<std::int64_t>(lists.size()), static_cast<DType>(values_dtype),
                           array(out, out_dtype), n, scale, clear, &bad_list, &first_bad, nullptr);
    check_indices(status, first_bad);
    return {bad_list, first_bad};
}

}  // namespace

void bind_scatter(pybind11::module_& module) {
    module.def("gather", &gather, WithoutGil());
    module.def("take", &take, WithoutGil());
    module.def("scatter_add", &scatter_with<&cpu::scatter_add>, WithoutGil());
    module.def("scatter_lists", &scatter_lists, WithoutGil());
    module.def("scatter_set", &scatter_with<&cpu::scatter_set>, WithoutGil());
}

}  // namespace hvd_compress::bindings
