#include "hvd_compress/scale.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

bool scale(Address x, int dtype, float factor, std::int64_t n) {
    bool finite = false;
    check(cpu::scale(array(x, dtype), factor, n, &finite));
    return finite;
}

}  // namespace

void bind_scale(pybind11::module_& module) { module.def("scale", &scale, WithoutGil()); }

}  // namespace hvd_compress::bindings
