#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "../embedding/initial_values.hpp"
#include "../embedding/lookahead.hpp"
#include "../embedding/unique_rows.hpp"
#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

using embedding::Counts;
using embedding::Exchange;
using embedding::Indices;
using embedding::Lane;
using embedding::Lookahead;
using embedding::Rules;
using embedding::Told;
using embedding::UniqueRows;

pybind11::array_t<std::int64_t> numpy_array(const Indices& indices) {
    return pybind11::array_t<std::int64_t>(static_cast<pybind11::ssize_t>(indices.size()), indices.data());
}

// One array, and how much of it is of each member.
pybind11::tuple joined(const std::vector<Indices>& lists) {
    std::vector<std::int64_t> lengths;
    std::int64_t length = 0;
    for (const Indices& list : lists) length += lengths.emplace_back(static_cast<std::int64_t>(list.size()));
    pybind11::array_t<std::int64_t> all(length);
    std::int64_t* to = all.mutable_data();
    for (const Indices& list : lists) to = std::copy(list.begin(), list.end(), to);
    return pybind11::make_tuple(all, lengths);
}

pybind11::tuple tuple(const Lane& lane) {
    return pybind11::make_tuple(joined(lane.gradients), joined(lane.compressed), joined(lane.records),
                                numpy_array(lane.updated), joined(lane.gradients_from), joined(lane.compressed_from),
                                joined(lane.records_from), joined(lane.rows_to), joined(lane.records_to),
                                joined(lane.rows_into), joined(lane.records_into));
}

pybind11::tuple tuple(const Exchange& exchange) {
    const Counts& counts = exchange.counts;
    return pybind11::make_tuple(
        tuple(exchange.lanes[0]), tuple(exchange.lanes[1]), numpy_array(exchange.alone), numpy_array(exchange.slots),
        exchange.admitted, exchange.occupied, exchange.overflows, exchange.overflow_rows,
        pybind11::make_tuple(counts.used, counts.single_user, counts.kept, counts.sync_now, counts.sync_later,
                             counts.evicted, counts.prefetched, counts.urgent));
}

pybind11::tuple tuple(const Told& told) {
    return pybind11::make_tuple(numpy_array(told.single_user), numpy_array(told.kept), numpy_array(told.sync_now),
                                numpy_array(told.sync_later), numpy_array(told.evicted), numpy_array(told.prefetched),
                                numpy_array(told.ttl_rows), numpy_array(told.ttl));
}

pybind11::tuple plan(Lookahead& lookahead, bool tells) {
    Told told;
    const Exchange& found = [&]() -> const Exchange& {
        ReleasedGil released;
        return lookahead.plan(tells ? &told : nullptr);
    }();
    return pybind11::make_tuple(tuple(found), tells ? pybind11::object(tuple(told)) : pybind11::none());
}

}  // namespace

void bind_embedding(pybind11::module_& module) {
    using Members = std::vector<std::int32_t>;
    pybind11::class_<Lookahead>(module, "EmbeddingLookahead")
        .def(pybind11::init([](std::int32_t members, std::int32_t member, Members owners, Members trainers,
                               std::int64_t cache_rows, std::int64_t lookahead, bool replicated, bool delayed,
                               bool compressed) {
            return Lookahead({members, member, std::move(owners), cache_rows, lookahead, replicated,
                              std::move(trainers), delayed, compressed});
        }))
        .def("add",
             [](Lookahead& lookahead, Address rows, const std::vector<std::int64_t>& offsets, std::int64_t limit) {
                 ReleasedGil released;
                 return lookahead.add(pointer<const std::int64_t>(rows), offsets, limit);
             })
        .def("fill", &Lookahead::fill, WithoutGil())
        .def("plan", &plan)
        .def("kept", [](const Lookahead& lookahead) {
            std::vector<Indices> slots, rows;
            lookahead.kept(&slots, &rows);
            return pybind11::make_tuple(joined(slots), joined(rows));
        });
    pybind11::class_<UniqueRows>(module, "EmbeddingUniqueRows")
        .def(pybind11::init<>())
        .def("collect",
             [](UniqueRows& unique, Address ids, std::int64_t count, Address rows, Address positions) {
                 ReleasedGil released;
                 return unique.collect(pointer<const std::int64_t>(ids), count, pointer<std::int64_t>(rows),
                                       pointer<std::int64_t>(positions));
             })
        .def("find", [](const UniqueRows& unique, Address ids, std::int64_t count, Address rows, Address positions) {
            ReleasedGil released;
            return unique.find(pointer<const std::int64_t>(ids), count, pointer<const std::int64_t>(rows),
                               pointer<std::int64_t>(positions));
        });
    module.def("embedding_initial_values", [](Address rows, std::int64_t count, Address offsets, Address bounds,
                                              std::int64_t tables, std::int64_t dim, std::uint64_t seed, Address values,
                                              std::int64_t stride) {
        ReleasedGil released;
        embedding::initial_values(pointer<const std::int64_t>(rows), count,
                                  {pointer<const std::int64_t>(offsets), pointer<const float>(bounds), tables}, dim,
                                  seed, pointer<float>(values), stride);
    });
}

}  // namespace hvd_compress::bindings
