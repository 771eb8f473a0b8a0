#include "hvd_compress/topk.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void topk(Address x, int dtype, std::int64_t n, std::int64_t k, Address indices, Address values, Address workspace,
          std::size_t workspace_bytes) {
    check(cpu::topk(const_array(x, dtype), n, k, pointer<std::int32_t>(indices), pointer<void>(values),
                    {pointer<void>(workspace), workspace_bytes}, nullptr));
}

void topk_accumulate(Address grad, int grad_dtype, Address residual, Address out, int out_dtype, std::int64_t n,
                     std::int64_t k, Address indices, Address values, Address workspace, std::size_t workspace_bytes) {
    check(cpu::topk_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype), array(out, out_dtype),
                               n, k, pointer<std::int32_t>(indices), pointer<float>(values),
                               {pointer<void>(workspace), workspace_bytes}, nullptr));
}

}  // namespace

void bind_topk(pybind11::module_& module) {
    module.def("topk_workspace_bytes", &cpu::topk_workspace_bytes);
    module.def("topk", &topk, WithoutGil());
    module.def("topk_accumulate", &topk_accumulate, WithoutGil());
}

}  // namespace hvd_compress::bindings
