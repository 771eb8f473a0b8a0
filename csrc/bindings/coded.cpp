#include "hvd_compress/coded.hpp"

#include <string>

#include "../cpu/coded/table.hpp"
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

// The tables of coded.hpp's CodedTables, as bytes.
pybind11::tuple coded_tables(int most) {
    if (!is_codable(most)) check(Status::kBadSize);
    const cpu::CodeTables& by = [&]() -> const cpu::CodeTables& {
        const ReleasedGil released;
        return cpu::code_tables(most);
    }();
    std::string words, numbers;
    for (const cpu::CodeTable& table : by.tables) {
        words.append(reinterpret_cast<const char*>(table.words.data()), 4 * table.words.size());
        numbers.append(reinterpret_cast<const char*>(table.numbers.data()), 2 * table.numbers.size());
    }
    const std::string lengths(reinterpret_cast<const char*>(by.lengths.data()), kCodedTables * by.lengths.size());
    return pybind11::make_tuple(pybind11::bytes(words), pybind11::bytes(lengths), pybind11::bytes(numbers));
}

}  // namespace

void bind_coded(pybind11::module_& module) {
    module.def("block_encode", &block_encode, WithoutGil());
    module.def("block_decode", &block_decode, WithoutGil());
    module.def("coded_tables", &coded_tables);
}

}  // namespace hvd_compress::bindings
