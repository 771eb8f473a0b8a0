// Lists of indices, as they are and in the code of Elias and Fano.
#include <algorithm>

#include "common.hpp"
#include "hvd_compress/elias_fano.hpp"
#include "hvd_compress/scatter.hpp"

namespace fuzz {
namespace {

using namespace hvd_compress;

constexpr std::int64_t kLists = 3;

// Some of 0..n-1, ascending: one in `each`, on average.
std::vector<std::int32_t> some_of(Random& random, std::int64_t n, std::int64_t each) {
    std::vector<std::int32_t> found;
    for (std::int64_t i = random.below(each); i < n; i += 1 + random.below(2 * each - 1)) {
        found.push_back(static_cast<std::int32_t>(i));
    }
    return found;
}

std::vector<std::int32_t> some_of(Random& random, std::int64_t n) {
    return some_of(random, n, std::int64_t{1} << random.below(8));
}

void make_list(Random& random, Payload& payload) {
    const std::vector<std::int32_t> indices = some_of(random, payload[kN]);
    const auto count = static_cast<std::int64_t>(indices.size());
    const std::vector<float> values = gradient(random, count);
    payload.parts.push_back(bytes_of(indices.data(), count));
    payload.parts.push_back(bytes_of(values.data(), count));
    payload.parts.back().resize(static_cast<std::size_t>(count * size_of(values_of(payload))));
}

void make_one(Random& random, Payload& payload) {
    common_settings(random, payload, 20000);
    payload.parts.clear();
    make_list(random, payload);
}

void make_several(Random& random, Payload& payload) {
    common_settings(random, payload, 140000);
    payload.parts.clear();
    for (std::int64_t lists = random.below(kLists + 1); lists > 0; --lists) make_list(random, payload);
}

struct List {
    const std::int32_t* indices;
    const void* values;
    std::int64_t count;

    // Python refuses lists of which one is longer than the other.
    List(const Payload& payload, Memory& memory, std::size_t part) {
        const Bytes &positions = payload.parts[part], &numbers = payload.parts[part + 1];
        const auto size = static_cast<std::size_t>(size_of(values_of(payload)));
        const std::size_t both = std::min(positions.size() / 4, numbers.size() / size);
        count = static_cast<std::int64_t>(both);
        indices = memory.input<std::int32_t>(positions, 4 * both, payload[kShift]);
        values = size == 4 ? static_cast<const void*>(memory.input<float>(numbers, size * both, payload[kShift]))
                           : memory.input<std::uint16_t>(numbers, size * both, payload[kShift]);
    }

    // The first position that is not within 0..n-1 and, where it must ascend, above the one before; or -1.
    std::int64_t first_bad(std::int64_t n, bool ascends) const {
        for (std::int64_t j = 0; j < count; ++j) {
            if (indices[j] < 0 || indices[j] >= n) return j;
            if (ascends && j > 0 && indices[j] <= indices[j - 1]) return j;
        }
        return -1;
    }
};

// Whether the payload was accepted, which is to be where no index is bad; no output has changed where it was not.
bool judge(Status status, std::int64_t found, std::int64_t expected, const void* out, std::int64_t bytes) {
    expect(found == expected, "another position of the first bad index");
    expect(status == (expected < 0 ? Status::kOk : Status::kIndexOutOfRange), "a status that does not fit the indices");
    if (expected < 0) return true;
    const auto* const all = static_cast<const std::uint8_t*>(out);
    bool kept = true;
    for (std::int64_t i = 0; i < bytes; ++i) kept &= all[i] == Memory::kFilled;
    expect(kept, "written, though an index is bad");
    return false;
}

bool decode_gather(const Payload& payload, Memory& memory) {
    const List list(payload, memory, 0);
    const DType dtype = dtype_of(payload);
    const std::int64_t n = payload[kN], size = size_of(dtype);
    const void* const x = memory.output(n * size, payload[kShift] * size);
    void* const values = memory.output(list.count * size, payload[kShift] * size);
    std::int64_t bad = -1;
    const Status status = cpu::gather({x, dtype}, n, list.indices, list.count, values, &bad, nullptr);
    return judge(status, bad, list.first_bad(n, false), values, list.count * size);
}

bool decode_take(const Payload& payload, Memory& memory) {
    const List list(payload, memory, 0);
    const DType dtype = dtype_of(payload);
    const std::int64_t n = payload[kN], size = size_of(dtype);
    void* const x = memory.output(n * size, payload[kShift] * size);
    auto* const values = static_cast<float*>(memory.output(4 * list.count, 4 * payload[kShift]));
    std::int64_t bad = -1;
    const Status status = cpu::take({x, dtype}, n, list.indices, list.count, values, &bad, nullptr);
    return judge(status, bad, list.first_bad(n, false), x, n * size);
}

template <Scatter<std::int64_t*>* scatter>
bool decode_scatter(const Payload& payload, Memory& memory) {
    const List list(payload, memory, 0);
    const DType dtype = dtype_of(payload);
    const std::int64_t n = payload[kN], size = size_of(dtype);
    void* const out = memory.output(n * size, payload[kShift] * size);
    std::int64_t bad = -1;
    const Status status = scatter(list.indices, {list.values, values_of(payload)}, list.count, {out, dtype}, n,
                                  weight_of(payload), &bad, nullptr);
    return judge(status, bad, list.first_bad(n, false), out, n * size);
}

bool decode_lists(const Payload& payload, Memory& memory) {
    const DType dtype = dtype_of(payload);
    const std::int64_t n = payload[kN], size = size_of(dtype);
    std::vector<SparseList> lists;
    std::int64_t expected = -1, expected_list = -1;
    for (std::size_t part = 0; part + 1 < payload.parts.size(); part += 2) {
        const List list(payload, memory, part);
        if (expected < 0 && (expected = list.first_bad(n, true)) >= 0) expected_list = static_cast<int>(part / 2);
        lists.push_back({list.indices, list.values, list.count});
    }
    void* const out = memory.output(n * size, payload[kShift] * size);
    const bool clears = n % 2 != 0;
    std::int64_t bad_list = -1, bad = -1;
    const Status status = cpu::scatter_lists(lists.data(), static_cast<std::int64_t>(lists.size()), values_of(payload),
                                             {out, dtype}, n, weight_of(payload), clears, &bad_list, &bad, nullptr);
    expect(bad_list == expected_list, "another list with a bad index");
    if (!judge(status, bad, expected, out, n * size)) return false;
    if (payload[kCompare] == 0) return true;
    void* const again = memory.output(n * size);
    if (clears) std::memset(again, 0, static_cast<std::size_t>(n * size));
    for (const SparseList& list : lists) {
        const Status one = cpu::scatter_add(list.indices, {list.values, values_of(payload)}, list.count, {again, dtype},
                                            n, weight_of(payload), &bad, nullptr);
        expect(one == Status::kOk, "scatter_add refuses what scatter_lists accepts");
    }
    expect(same(out, again, dtype, n), "another sum than by scatter_add");
    return true;
}

void make_elias_fano(Random& random, Payload& payload) {
    common_settings(random, payload, 140000);
    const std::vector<std::int32_t> indices = some_of(random, payload[kN]);
    payload[kCount] = static_cast<std::int64_t>(indices.size());
    const EliasFano code = elias_fano(payload[kN], payload[kCount]);
    std::vector<std::uint32_t> words(static_cast<std::size_t>(code.high_words + code.low_words));
    std::int64_t bad = -1;
    const Status status =
        cpu::elias_fano_encode(indices.data(), payload[kCount], payload[kN], words.data(), &bad, nullptr);
    expect(status == Status::kOk, "the fuzzer itself: a payload cannot be made");
    payload.parts = {bytes_of(words.data(), static_cast<std::int64_t>(words.size()))};
}

struct Decoded {
    std::int32_t* indices;
    std::int64_t bad;
    bool accepted;
};

Decoded elias_fano_decoded(const std::uint32_t* words, const Payload& payload, Memory& memory) {
    const std::int64_t n = payload[kN], count = payload[kCount];
    const std::size_t room = cpu::elias_fano_workspace_bytes(n, count);
    Decoded found{static_cast<std::int32_t*>(memory.output(4 * count, 4 * payload[kShift])), -1, false};
    void* const workspace = memory.output(static_cast<std::int64_t>(room));
    const Status status =
        cpu::elias_fano_decode(words, count, n, found.indices, {workspace, room}, &found.bad, nullptr);
    found.accepted = status == Status::kOk;
    expect(found.accepted || status == Status::kIndexOutOfRange, "a status that no payload may lead to");
    return found;
}

bool decode_elias_fano(const Payload& payload, Memory& memory) {
    const std::int64_t n = payload[kN], count = payload[kCount];
    const auto* const words = memory.input<std::uint32_t>(payload.parts[0], payload[kShift]);
    const Decoded found = elias_fano_decoded(words, payload, memory);
    if (!found.accepted) {
        expect(found.bad >= 0 && found.bad <= count, "the first bad index lies outside");
        return false;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t index = found.indices[i];
        expect(index >= 0 && index < n && (i == 0 || found.indices[i - 1] < index), "accepted, but no ascending list");
    }
    if (payload[kCompare] == 0) return true;
    const EliasFano code = elias_fano(n, count);
    std::int64_t bad = -1;
    auto* const encoded = static_cast<std::uint32_t*>(memory.output(4 * (code.high_words + code.low_words)));
    const Status status = cpu::elias_fano_encode(found.indices, count, n, encoded, &bad, nullptr);
    expect(status == Status::kOk, "accepted indices cannot be encoded");
    const Decoded again = elias_fano_decoded(encoded, payload, memory);
    expect(again.accepted && std::equal(found.indices, found.indices + count, again.indices),
           "accepted indices become others");
    return true;
}

}  // namespace

std::vector<Decoder> sparse_decoders() {
    return {
        {"elias_fano_decode", false, &make_elias_fano, &decode_elias_fano},
        {"gather", true, &make_one, &decode_gather},
        {"take", true, &make_one, &decode_take},
        {"scatter_add", true, &make_one, &decode_scatter<&cpu::scatter_add>},
        {"scatter_set", true, &make_one, &decode_scatter<&cpu::scatter_set>},
        {"scatter_lists", true, &make_several, &decode_lists},
    };
}

}  // namespace fuzz
