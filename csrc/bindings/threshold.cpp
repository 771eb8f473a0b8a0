#include "hvd_compress/threshold.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

std::int64_t threshold_count(Address x, int dtype, std::int64_t n, float tau, Address workspace,
                             std::size_t workspace_bytes) {
    std::int64_t count = 0;
    check(cpu::threshold_count(const_array(x, dtype), n, tau, &count, {pointer<void>(workspace), workspace_bytes},
                               nullptr));
    return count;
}

void threshold_select(Address x, int dtype, std::int64_t n, float tau, std::int64_t count, Address indices,
                      Address values, Address workspace, std::size_t workspace_bytes) {
    check(cpu::threshold_select(const_array(x, dtype), n, tau, count, pointer<std::int32_t>(indices),
                                pointer<void>(values), {pointer<void>(workspace), workspace_bytes}, nullptr));
}

std::int64_t threshold_accumulate(Address grad, int grad_dtype, Address residual, float factor, Address velocity,
                                  Address velocity_out, Address out, std::int64_t n, float tau, Address workspace,
                                  std::size_t workspace_bytes) {
    std::int64_t count = 0;
    check(cpu::threshold_accumulate(const_array(grad, grad_dtype), pointer<const float>(residual),
                                    {factor, pointer<const float>(velocity), pointer<float>(velocity_out)},
                                    pointer<float>(out), n, tau, &count, {pointer<void>(workspace), workspace_bytes},
                                    nullptr));
    return count;
}

void threshold_take(Address x, Address velocity_out, std::int64_t n, float tau, std::int64_t count, Address indices,
                    Address values, Address workspace, std::size_t workspace_bytes) {
    check(cpu::threshold_take(pointer<float>(x), pointer<float>(velocity_out), n, tau, count,
                              pointer<std::int32_t>(indices), pointer<float>(values),
                              {pointer<void>(workspace), workspace_bytes}, nullptr));
}

}  // namespace

void bind_threshold(pybind11::module_& module) {
    module.def("threshold_workspace_bytes", &cpu::threshold_workspace_bytes);
    module.def("threshold_count", &threshold_count, WithoutGil());
    module.def("threshold_select", &threshold_select, WithoutGil());
    module.def("threshold_accumulate", &threshold_accumulate, WithoutGil());
    module.def("threshold_take", &threshold_take, WithoutGil());
}

}  // namespace hvd_compress::bindings
