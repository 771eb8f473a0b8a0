// Values at a list of indices: read them, take them away, add them, set them.
//
// Indices may come from another rank, so none is used that does not lie in 0..n-1. The twins differ in how they say so:
// - On the CPU a launcher looks at the whole list before it writes anything. *first_bad = -1 if all indices are good;
//   else the position of the first that is not, and nothing else is written. Indices may come in any order and more
//   than once; what happens to repeated ones happens in the order of the list.
// - On CUDA all indices are looked at at once, in the pass that uses them, and the host is not told: what is bad is
// left
//   out and noted in a Fault of the caller, who looks there when it suits, once a step for all launches. A list by
//   which something is written must ascend without repetition, as all do that a compressor makes; an index that does
//   not lie above the one before is bad. Of a list with a bad index, what is written means nothing, but no byte outside
//   of it changes.
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// *first becomes tag << 48 | list << 32 | position of the first bad index, if that is less than what it is: the caller
// sets it to kNoFault, and tells launches apart by their tags. Lists are counted to 65,535.
struct Fault {
    unsigned long long* first;
    std::uint16_t tag;
};
constexpr unsigned long long kNoFault = ~0ull;

// Bad is std::int64_t* first_bad on the CPU, Fault on CUDA.

// values[j] = x[indices[j]], in the dtype of x.
template <class Bad>
using Gather = Status(ConstArray x, std::int64_t n, const std::int32_t* indices, std::int64_t count, void* values,
                      Bad bad, Stream stream) noexcept;

// values[j] = x[indices[j]], then x[indices[j]] = 0: the second of two equal indices gets 0.
template <class Bad>
using Take = Status(Array x, std::int64_t n, const std::int32_t* indices, std::int64_t count, float* values, Bad bad,
                    Stream stream) noexcept;

// Add: out[indices[j]] += scale * values[j]. Set: out[indices[j]] = scale * values[j]. values are fp32 or of the dtype
// of out; the product is rounded to fp32, what is stored to the dtype of out.
template <class Bad>
using Scatter = Status(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                       float scale, Bad bad, Stream stream) noexcept;

// What one rank sent: values[j] at indices[j], which ascend without repetition.
struct SparseList {
    const std::int32_t* indices;
    const void* values;
    std::int64_t count;
};

// The same as scatter_add of one list after the other, the first onto zeros if `clear`. values are fp32 or of the dtype
// of out. Bad is, on the CPU, two: *bad_list = -1, or the first list whose indices do not ascend within 0..n-1, and
// *first_bad is then the position of the first that does not.
template <class... Bad>
using ScatterLists = Status(const SparseList* lists, std::int64_t list_count, DType values, Array out, std::int64_t n,
                            float scale, bool clear, Bad... bad, Stream stream) noexcept;

namespace cpu {
ScatterLists<std::int64_t*, std::int64_t*> scatter_lists;
Gather<std::int64_t*> gather;
Take<std::int64_t*> take;
Scatter<std::int64_t*> scatter_add;
Scatter<std::int64_t*> scatter_set;
}  // namespace cpu

namespace cuda {
ScatterLists<Fault> scatter_lists;
Gather<Fault> gather;
Take<Fault> take;
Scatter<Fault> scatter_add;
Scatter<Fault> scatter_set;
}  // namespace cuda

}  // namespace hvd_compress
