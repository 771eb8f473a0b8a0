// What a cache takes of each token.
#include <cstring>

#include "hvd_compress/attention.hpp"

namespace hvd_compress::cpu {

Status copy_tokens(TokenRows token, const std::int64_t* index, std::int64_t count, void* store, std::int64_t stride,
                   std::int64_t* first_bad) noexcept {
    if (token.count < 0 || token.heads < 1 || token.bytes < 0 || count < 0 || stride < 0) return Status::kBadSize;
    for (*first_bad = 0; *first_bad < count; ++*first_bad) {
        if (index[*first_bad] < 0 || index[*first_bad] >= token.count) return Status::kIndexOutOfRange;
    }
    *first_bad = -1;
    const volatile std::int64_t* rows = index;  // each is read once: another thread may write to them meanwhile
    char* to = static_cast<char*>(store);
    for (std::int64_t i = 0; i < count; ++i, to += stride) {
        const std::int64_t row = rows[i];
        if (row < 0 || row >= token.count) return Status::kChangedMeanwhile;
        const std::int64_t at = row / token.heads * token.sequence_stride + row % token.heads * token.head_stride;
        std::memcpy(to, static_cast<const char*>(token.data) + at, static_cast<std::size_t>(token.bytes));
    }
    return Status::kOk;
}

}  // namespace hvd_compress::cpu
