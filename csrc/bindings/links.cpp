#include "../links/links.hpp"

#include <pybind11/stl.h>

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

using links::Links;
using links::Part;
// By rank: where it lies, how many bytes, and whether there is a message.
using Parts = std::vector<std::tuple<Address, links::Length, bool>>;

std::vector<Part> parts(const Parts& told) {
    std::vector<Part> found;
    for (const auto& [address, bytes, travels] : told) found.push_back({pointer<char>(address), bytes, travels});
    return found;
}

// (how it ended, with whom, the system's error, the length expected, the one that came, lengths received by rank)
auto swap(Links& links, const Parts& sent, const Parts& received, const std::vector<int>& order, bool exactly,
          int limit_ms) {
    std::vector<Part> out = parts(sent), in = parts(received);
    links::Outcome outcome{};
    {
        const ReleasedGil released;
        outcome = links.swap(out, in, order, exactly, limit_ms);
    }
    std::vector<links::Length> lengths;
    for (const Part& part : in) lengths.push_back(part.bytes);
    return std::tuple(static_cast<int>(outcome.end), outcome.rank, outcome.error, outcome.expected, outcome.came,
                      lengths);
}

}  // namespace

void bind_links(pybind11::module_& module) {
    pybind11::class_<Links>(module, "Links")
        .def(pybind11::init<std::vector<int>>())
        .def("swap", &swap)
        .def("abort", &Links::abort, WithoutGil())
        .def("forget", &Links::forget);
}

}  // namespace hvd_compress::bindings
