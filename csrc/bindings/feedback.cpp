#include "hvd_compress/feedback.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

bool accumulate(Address grad, int grad_dtype, Address residual, Address out, int out_dtype, std::int64_t n) {
    std::int32_t finite = 0;
    check(cpu::accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype), array(out, out_dtype), n,
                          &finite, nullptr));
    return finite != 0;
}

}  // namespace

void bind_feedback(pybind11::module_& module) { module.def("accumulate", &accumulate, WithoutGil()); }

}  // namespace hvd_compress::bindings
