#include "hvd_compress/quantize.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void quantize_accumulate(Address grad, int grad_dtype, Address residual, Address out, int out_dtype, std::int64_t n,
                         int bits, int kind, std::uint64_t seed, std::uint32_t step, std::uint32_t bucket,
                         Address packed, Address norm, Address workspace, std::size_t workspace_bytes) {
    check(cpu::quantize_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype),
                                   array(out, out_dtype), n, bits, static_cast<Norm>(kind), {seed, step, bucket},
                                   pointer<std::uint8_t>(packed), pointer<float>(norm),
                                   {pointer<void>(workspace), workspace_bytes}, nullptr));
}

void quantize_add(Address packed, Address norm, Address out, int out_dtype, std::int64_t n, int bits, float weight) {
    check(cpu::quantize_add(pointer<const std::uint8_t>(packed), pointer<const float>(norm), array(out, out_dtype), n,
                            bits, weight, nullptr));
}

}  // namespace

void bind_quantize(pybind11::module_& module) {
    module.def("quantize_workspace_bytes", &cpu::quantize_workspace_bytes);
    module.def("quantize_accumulate", &quantize_accumulate, WithoutGil());
    module.def("quantize_add", &quantize_add, WithoutGil());
}

}  // namespace hvd_compress::bindings
