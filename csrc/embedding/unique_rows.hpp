// The distinct rows of a batch, nearly in the order of their hashes, and the position among them of each id. So rows
// that lie near each other in a table of rows come together: Lookahead::add takes them so from all ranks.
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

    void order(std::int64_t* rows, std::int32_t distinct);

    std::vector<std::int32_t> places_;  // positions from 1 on; 0: none
    std::vector<std::int64_t> first_order_;
    std::vector<std::int32_t> moved_;  // to which position, from each in the order of the first use
    std::size_t mask_ = 0;
    int shift_ = 64;
};

}  // namespace hvd_compress::embedding
