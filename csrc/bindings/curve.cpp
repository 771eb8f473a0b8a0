#include "hvd_compress/curve.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

void magnitude_curve(Address x, int dtype, std::int64_t n, Address counts, Address shares, Address workspace,
                     std::size_t workspace_bytes) {
    check(cpu::magnitude_curve(const_array(x, dtype), n, pointer<std::int64_t>(counts), pointer<double>(shares),
                               {pointer<void>(workspace), workspace_bytes}, nullptr));
}

}  // namespace

void bind_curve(pybind11::module_& module) {
    module.attr("CURVE_BINS") = kCurveBins;
    module.def("curve_workspace_bytes", &cpu::curve_workspace_bytes);
    module.def("magnitude_curve", &magnitude_curve, WithoutGil());
}

}  // namespace hvd_compress::bindings
