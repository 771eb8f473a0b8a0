// Initial values of rows, from nothing but a seed and the row's id: 24 bits of the output function of splitmix64
// (Steele et al. 2014), of whole numbers that follow each other within a row, uniform between -bound and bound of the
// row's table.
#pragma once

#include <cstdint>

namespace hvd_compress::embedding {

struct Tables {
    const std::int64_t* offsets;  // id of the first row of each
    const float* bounds;
    std::int64_t count;
};

// Writes `dim` values of each of `count` rows; those of the next row follow `stride` floats behind.
void initial_values(const std::int64_t* rows, std::int64_t count, const Tables& tables, std::int64_t dim,
                    std::uint64_t seed, float* values, std::int64_t stride);

}  // namespace hvd_compress::embedding
