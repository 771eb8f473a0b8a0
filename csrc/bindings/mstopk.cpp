#include "hvd_compress/mstopk.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void mstopk(Address x, int dtype, std::int64_t n, std::int64_t k, int rounds, Address indices, Address values,
            Address workspace, std::size_t workspace_bytes) {
    check(cpu::mstopk(const_array(x, dtype), n, k, rounds, pointer<std::int32_t>(indices), pointer<void>(values),
                      {pointer<void>(workspace), workspace_bytes}, nullptr));
}

void mstopk_accumulate(Address grad, int grad_dtype, Address residual, Address out, int out_dtype, std::int64_t n,
                       std::int64_t k, int rounds, Address indices, Address values, Address workspace,
                       std::size_t workspace_bytes) {
    check(cpu::mstopk_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype), array(out, out_dtype),
                                 n, k, rounds, pointer<std::int32_t>(indices), pointer<float>(values),
                                 {pointer<void>(workspace), workspace_bytes}, nullptr));
}

}  // namespace

void bind_mstopk(pybind11::module_& module) {
    module.def("mstopk_workspace_bytes", &cpu::mstopk_workspace_bytes);
    module.def("mstopk", &mstopk, WithoutGil());
    module.def("mstopk_accumulate", &mstopk_accumulate, WithoutGil());
}

}  // namespace hvd_compress::bindings
