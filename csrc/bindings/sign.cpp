#include "hvd_compress/sign.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void sign_accumulate(Address grad, int grad_dtype, Address residual, Address out, int out_dtype, std::int64_t n,
                     Address bits, Address scale, Address workspace, std::size_t workspace_bytes) {
    check(cpu::sign_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype), array(out, out_dtype),
                               n, pointer<std::uint8_t>(bits), pointer<float>(scale),
                               {pointer<void>(workspace), workspace_bytes}, nullptr));
}

void sign_accumulate_kept(Address grad, int grad_dtype, Address kept, Address kept_scale, Address out, int out_dtype,
                          std::int64_t n, Address bits, Address scale, Address workspace, std::size_t workspace_bytes) {
    check(cpu::sign_accumulate_kept(const_array(grad, grad_dtype), const_array(kept, out_dtype),
                                    pointer<const float>(kept_scale), array(out, out_dtype), n,
                                    pointer<std::uint8_t>(bits), pointer<float>(scale),
                                    {pointer<void>(workspace), workspace_bytes}, nullptr));
}

void sign_add(Address bits, Address scale, Address out, int out_dtype, std::int64_t n, float weight) {
    check(cpu::sign_add(pointer<const std::uint8_t>(bits), pointer<const float>(scale), array(out, out_dtype), n,
                        weight, nullptr));
}

}  // namespace

void bind_sign(pybind11::module_& module) {
    module.def("sign_workspace_bytes", &cpu::sign_workspace_bytes);
    module.def("sign_accumulate", &sign_accumulate, WithoutGil());
    module.def("sign_accumulate_kept", &sign_accumulate_kept, WithoutGil());
    module.def("sign_add", &sign_add, WithoutGil());
}

}  // namespace hvd_compress::bindings
