#include <pybind11/stl.h>

#include "../planner/search.hpp"
#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

using planner::Found;
using planner::Option;
using planner::Problem;
using planner::Strategy;
using planner::Timeline;

pybind11::tuple tuple(const Found& found) {
    return pybind11::make_tuple(found.strategy, found.end, found.simulations, found.complete);
}

template <class Function, class... Arguments>
pybind11::tuple search(Function function, const Arguments&... arguments) {
    const Found found = [&] {
        ReleasedGil released;
        return function(arguments...);
    }();
    return tuple(found);
}

std::vector<planner::Nanoseconds> ends_of(const Problem& problem, const std::vector<Strategy>& strategies) {
    Timeline timeline(problem);
    std::vector<planner::Nanoseconds> ends;
    for (const Strategy& strategy : strategies) {
        problem.check(strategy);
        timeline.begin(strategy);
        ends.push_back(timeline.run());
    }
    return ends;
}

std::vector<std::array<std::int64_t, 5>> spans_of(const Problem& problem, const Strategy& strategy) {
    problem.check(strategy);
    Timeline timeline(problem);
    timeline.begin(strategy);
    std::vector<std::array<std::int64_t, 5>> rows;
    for (const planner::Span& span : timeline.spans())
        rows.push_back({span.tensor, span.task, span.lane, span.start, span.end});
    return rows;
}

}  // namespace

void bind_planner(pybind11::module_& module) {
    using Prices = std::vector<std::vector<std::int64_t>>;
    using Kinds = std::vector<std::vector<std::int32_t>>;
    using Options = std::vector<Option>;
    pybind11::class_<Problem>(module, "PlannerProblem")
        .def(pybind11::init<const std::vector<std::int64_t>&, std::vector<std::int32_t>, const Kinds&,
                            const std::vector<std::int32_t>&, const Prices&, std::int32_t>())
        .def("undominated", &Problem::undominated)
        .def("cheapest", &Problem::cheapest)
        .def("times", &Problem::times)
        .def("ends", &ends_of)
        .def("spans", &spans_of)
        .def("select", [](const Problem& problem, const std::vector<std::int64_t>& numel, const Options& among,
                          Option first) { return search(planner::select, problem, numel, among, first); })
        .def("offload", [](const Problem& problem, const Strategy& strategy, const Options& twin,
                           std::int64_t most) { return search(planner::offload, problem, strategy, twin, most); })
        .def("improve", [](const Problem& problem, const Strategy& strategy, const Options& among,
                           std::int64_t most) { return search(planner::improve, problem, strategy, among, most); })
        .def("brute_force", [](const Problem& problem, const Options& among, std::int64_t most) {
            return search(planner::brute_force, problem, among, most);
        });
}

}  // namespace hvd_compress::bindings
