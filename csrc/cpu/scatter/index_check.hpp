#pragma once

#include <cstdint>

namespace hvd_compress::cpu {

// Position of the first index outside 0..n-1, or -1. As unsigned numbers, negative indices are the largest of all.
inline std::int64_t find_bad_index(const std::int32_t* indices, std::int64_t count, std::int64_t n) {
    for (std::int64_t j = 0; j < count; ++j) {
        if (static_cast<std::uint32_t>(indices[j]) >= static_cast<std::uint32_t>(n)) return j;
    }
    return -1;
}

}  // namespace hvd_compress::cpu
