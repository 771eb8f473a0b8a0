// Values at a list of indices: read them, take them away, add them, set them.
//
// Indices may come from another rank, so each launcher looks at the whole list before it writes anything:
// *first_bad = -1 if all lie in 0..n-1; else the position of the first that does not, and nothing else is written.
// Indices may come in any order and more than once; what happens to repeated ones happens in the order of the list.
// Not so on CUDA, where all are looked at at once: there a list by which something is written must ascend without
// repetition, as all do that a compressor makes, and the first index that does not is bad.
#pragma once

#include "hvd_compress/types.hpp"

namespace hvd_compress {

// values[j] = x[indices[j]], in the dtype of x.
using Gather = Status(ConstArray x, std::int64_t n, const std::int32_t* indices, std::int64_t count, void* values,
                      std::int64_t* first_bad, Stream stream) noexcept;

// values[j] = x[indices[j]], then x[indices[j]] = 0: the second of two equal indices gets 0.
using Take = Status(Array x, std::int64_t n, const std::int32_t* indices, std::int64_t count, float* values,
                    std::int64_t* first_bad, Stream stream) noexcept;

// Add: out[indices[j]] += scale * values[j]. Set: out[indices[j]] = scale * values[j]. values are fp32 or of the dtype
// of out; the product is rounded to fp32, what is stored to the dtype of out.
using Scatter = Status(const std::int32_t* indices, ConstArray values, std::int64_t count, Array out, std::int64_t n,
                       float scale, std::int64_t* first_bad, Stream stream) noexcept;

// What one rank sent: values[j] at indices[j], which ascend without repetition.
struct SparseList {
    const std::int32_t* indices;
    const void* values;
    std::int64_t count;
};

// The same as scatter_add of one list after the other, the first onto zeros if `clear`. values are fp32 or of the dtype
// of out. *bad_list = -1, or the first list whose indices do not ascend within 0..n-1; *first_bad is then the position
// of the first that does not, and nothing is written.
using ScatterLists = Status(const SparseList* lists, std::int64_t list_count, DType values, Array out, std::int64_t n,
                            float scale, bool clear, std::int64_t* bad_list, std::int64_t* first_bad,
                            Stream stream) noexcept;

namespace cpu {
ScatterLists scatter_lists;
Gather gather;
Take take;
Scatter scatter_add;
Scatter scatter_set;
}  // namespace cpu

namespace cuda {
ScatterLists scatter_lists;
Gather gather;
Take take;
Scatter scatter_add;
Scatter scatter_set;
}  // namespace cuda

}  // namespace hvd_compress
