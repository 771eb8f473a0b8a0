#include "hvd_compress/scale.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

bool scale(Address x, int dtype, std::int64_t n, float factor) {
    std::int32_t finite = 0;
    check(cpu::scale(array(x, dtype), n, factor, &finite, nullptr));
    return finite != 0;
}

}  // namespace

void bind_scale(pybind11::module_& module) { module.def("scale", &scale, WithoutGil()); }

}  // namespace hvd_compress::bindings
