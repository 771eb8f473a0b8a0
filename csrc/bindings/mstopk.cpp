#include "hvd_compress/mstopk.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

double magnitude_sum(Address x, int dtype, std::int64_t n, Address workspace, std::size_t workspace_bytes) {
    double sum = 0.0;
    check(cpu::magnitude_sum(const_array(x, dtype), n, &sum, {pointer<void>(workspace), workspace_bytes}, nullptr));
    return sum;
}

}  // namespace

void bind_mstopk(pybind11::module_& module) {
    module.def("mstopk_workspace_bytes", &cpu::mstopk_workspace_bytes);
    module.def("magnitude_sum", &magnitude_sum, WithoutGil());
}

}  // namespace hvd_compress::bindings
