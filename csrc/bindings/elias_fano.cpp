#include "hvd_compress/elias_fano.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

std::int64_t elias_fano_encode(Address indices, std::int64_t count, std::int64_t n, Address words) {
    std::int64_t first_bad = -1;
    const Status status = cpu::elias_fano_encode(pointer<const std::int32_t>(indices), count, n,
                                                 pointer<std::uint32_t>(words), &first_bad, nullptr);
    return check_indices(status, first_bad);
}

std::int64_t elias_fano_decode(Address words, std::int64_t count, std::int64_t n, Address indices, Address workspace,
                               std::size_t workspace_bytes) {
    std::int64_t first_bad = -1;
    const Status status =
        cpu::elias_fano_decode(pointer<const std::uint32_t>(words), count, n, pointer<std::int32_t>(indices),
                               {pointer<void>(workspace), workspace_bytes}, &first_bad, nullptr);
    return check_indices(status, first_bad);
}

}  // namespace

void bind_elias_fano(pybind11::module_& module) {
    module.def("elias_fano_workspace_bytes", &cpu::elias_fano_workspace_bytes);
    module.def("elias_fano_encode", &elias_fano_encode, WithoutGil());
    module.def("elias_fano_decode", &elias_fano_decode, WithoutGil());
}

}  // namespace hvd_compress::bindings
