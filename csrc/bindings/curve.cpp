#include "hvd_compress/curve.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void magnitude_counts(Address x, int dtype, std::int64_t n, Address counts, Address workspace,
                      std::size_t workspace_bytes) {
    check(cpu::magnitude_counts(const_array(x, dtype), n, pointer<std::int64_t>(counts),
                                {pointer<void>(workspace), workspace_bytes}, nullptr));
}

}  // namespace

void bind_curve(pybind11::module_& module) {
    module.attr("CURVE_SHIFT") = kCurveShift;
    module.def("curve_workspace_bytes", &cpu::curve_workspace_bytes);
    module.def("magnitude_counts", &magnitude_counts, WithoutGil());
}

}  // namespace hvd_compress::bindings
