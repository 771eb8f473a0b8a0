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

    // Positions of ids among `rows`, the result of the last collect(). Returns where the first id stands that is none
    // of them, else -1.
    std::int64_t find(const std::int64_t* ids, std::int64_t count, const std::int64_t* rows,
                      std::int64_t* positions) const;

  private:
    void resize(std::int64_t rows);
    void enlarge(const std::int64_t* rows, std::int32_t distinct);

    std::vector<std::int32_t> places_;  // positions from 1 on; 0: none
    std::size_t mask_ = 0;
    int shift_ = 64;
};

}  // namespace hvd_compress::embedding
