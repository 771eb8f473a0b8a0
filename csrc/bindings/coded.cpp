#include "hvd_compress/coded.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

std::int64_t block_encode(Address codes, std::int64_t n, int most, Address coded) {
    std::int64_t bytes = 0;
    check(cpu::block_encode(pointer<const std::uint8_t>(codes), n, most, pointer<std::uint8_t>(coded), &bytes));
    return bytes;
}

// Whether what was coded are codes of n elements.
bool block_decode(Address coded, std::int64_t bytes, std::int64_t n, int most, Address codes) {
    const Status status =
        cpu::block_decode(pointer<const std::uint8_t>(coded), bytes, n, most, pointer<std::uint8_t>(codes));
    if (status != Status::kBadPayload) check(status);
    return status == Status::kOk;
}

}  // namespace

void bind_coded(pybind11::module_& module) {
    module.def("block_encode", &block_encode, WithoutGil());
    module.def("block_decode", &block_decode, WithoutGil());
}

}  // namespace hvd_compress::bindings
