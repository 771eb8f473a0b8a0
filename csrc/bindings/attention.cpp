#include "hvd_compress/attention.hpp"

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

// The position of what is wrong in the plan, or -1.
std::int64_t decode_attention(Address index, std::int64_t scores, std::int64_t outputs, int dtype, Address query,
                              std::int64_t queries, std::int64_t heads, std::int64_t sequence_stride,
                              std::int64_t head_stride, Address keys, std::int64_t key_rows, std::int64_t key_stride,
                              std::int64_t head_dim, Address values, std::int64_t value_rows, std::int64_t value_stride,
                              std::int64_t value_dim, Address mask, std::int64_t mask_stride, std::int64_t tokens,
                              float scaling, Address out, Address workspace, std::size_t workspace_bytes) {
    std::int64_t first_bad = -1;
    const Status status =
        cpu::decode_attention({pointer<const std::int64_t>(index), scores, outputs},
                              {const_array(query, dtype), queries, heads, sequence_stride, head_stride},
                              {const_array(keys, dtype), key_rows, key_stride, head_dim},
                              {const_array(values, dtype), value_rows, value_stride, value_dim},
                              {pointer<const std::uint8_t>(mask), mask_stride}, tokens, scaling, pointer<void>(out),
                              {pointer<void>(workspace), workspace_bytes}, &first_bad);
    if (first_bad < 0) check(status);
    return first_bad;
}

std::int64_t copy_tokens(Address data, std::int64_t rows, std::int64_t heads, std::int64_t sequence_stride,
                         std::int64_t head_stride, std::int64_t bytes, Address index, std::int64_t count, Address store,
                         std::int64_t stride) {
    std::int64_t first_bad = -1;
    const Status status =
        cpu::copy_tokens({pointer<const void>(data), rows, heads, sequence_stride, head_stride, bytes},
                         pointer<const std::int64_t>(index), count, pointer<void>(store), stride, &first_bad);
    return check_indices(status, first_bad);
}

}  // namespace

void bind_attention(pybind11::module_& module) {
    module.def("decode_attention_workspace_bytes", &cpu::decode_attention_workspace_bytes);
    module.def("copy_tokens", &copy_tokens, WithoutGil());
    module.def("decode_attention", &decode_attention, WithoutGil());
}

}  // namespace hvd_compress::bindings
