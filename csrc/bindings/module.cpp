#include "bindings.hpp"

PYBIND11_MODULE(_native, module) {
    using namespace hvd_compress::bindings;
    module.doc() = "Compiled kernels of hvd_compress. Nothing is checked here: call hvd_compress.native instead.";
    bind_control(module);
    bind_feedback(module);
    bind_scale(module);
    bind_topk(module);
    bind_sign(module);
    bind_scatter(module);
    bind_threshold(module);
    bind_curve(module);
    bind_quantize(module);
    bind_blocks(module);
    bind_mstopk(module);
    bind_coded(module);
    bind_elias_fano(module);
    bind_planner(module);
    bind_embedding(module);
    bind_attention(module);
    bind_links(module);
}
