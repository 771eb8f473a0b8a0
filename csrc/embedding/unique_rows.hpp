// The distinct rows of a batch, in the order of their first use, and the position among them of each id.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd_compress::embedding {

class UniqueRows {
  public:
    // Writes at most `count` distinct rows, and for each of the `count` ids its position. Returns how many are
    // distinct.
    std::int64_t collect(const std::int64_t* ids, std::int64_t count, std::int64_t* rows, std::int64_t* positions);

    // Positions of ids among the rows of the last collect(). Returns where the first id stands that is none of them,
    // else -1.
    std::int64_t find(const std::int64_t* ids, std::int64_t count, std::int64_t* positions) const;

  private:
    struct Slot {
        std::int64_t row = 0;
        std::uint32_t turn = 0;  // of collect(): what an earlier one has left is free
        std::int32_t position = 0;
    };

    void reserve(std::int64_t count);

    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
    int shift_ = 64;
    std::uint32_t turn_ = 0;
};

}  // namespace hvd_compress::embedding
