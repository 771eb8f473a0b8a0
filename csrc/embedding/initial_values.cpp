#include "initial_values.hpp"

#include <algorithm>

namespace hvd_compress::embedding {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::uint64_t mixed(std::uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
    return state ^ (state >> 31);
}

}  // namespace

void initial_values(const std::int64_t* rows, std::int64_t count, const Tables& tables, std::int64_t dim,
                    std::uint64_t seed, float* values, std::int64_t stride) {
    const std::uint64_t start = seed * kGolden + kGolden;
    for (std::int64_t i = 0; i < count; ++i, values += stride) {
        const auto table =
            std::upper_bound(tables.offsets, tables.offsets + tables.count, rows[i]) - tables.offsets - 1;
        const float bound = tables.bounds[table];
        const std::uint64_t place = static_cast<std::uint64_t>(rows[i]) * static_cast<std::uint64_t>(dim) + start;
        for (std::int64_t j = 0; j < dim; ++j) {
            const auto bits = static_cast<std::uint32_t>(mixed(place + static_cast<std::uint64_t>(j)) >> 40);
            values[j] = (static_cast<float>(bits) * 0x1p-23F - 1.0F) * bound;
        }
    }
}

}  // namespace hvd_compress::embedding
