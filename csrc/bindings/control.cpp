#include "../cpu/feedback/kernels.hpp"
#include "../cpu/isa/level.hpp"
#include "../cpu/pool/pool.hpp"
#include "../cpu/topk/selection.hpp"
#include "bindings.hpp"

namespace hvd_compress::bindings {

void bind_control(pybind11::module_& module) {
    module.def("set_num_threads", &cpu::set_num_threads);
    module.def("best_simd_level", [] { return static_cast<int>(cpu::best_level()); });
    module.def("num_threads", &cpu::num_threads);
    module.def("simd_level_of_kernels", [] { return static_cast<int>(cpu::feedback_kernels().level); });
    module.def("slow_selections", [] { return cpu::slow_selections.load(); });
    module.def("set_simd_level", [](int level) { return cpu::set_level(static_cast<cpu::Level>(level)); });
}

}  // namespace hvd_compress::bindings
