// Strategies: Espresso's Algorithms 1 and 2, a local search beyond them, and brute force for what is small.
#pragma once

#include <utility>
#include <vector>

#include "timeline.hpp"

namespace hvd_compress::planner {

struct Found {
    Strategy strategy;
    Nanoseconds end = 0;  // F of it
    std::int64_t simulations = 0;
    bool complete = true;  // whether all was looked at that there was to look at
};

// Algorithm 1, which begins with one option for all tensors. Tensors in descending order of their elements, of equal ones
// the last in backward order first; each takes the option by which the iteration ends first, of those of `among` that are
// the cheapest of its size, if any is better than what it has. Tensors that option `first` does not compress and that
// communicate before the last bubble are left out, anew after each choice (properties 1 to 3). `numel`: by size.
Found select(const Problem& problem, const std::vector<std::int64_t>& numel, const std::vector<Option>& among,
             Option first);

// Algorithm 2. Tensors of one size and option form a group, of which the first ones in backward order are offloaded:
// they take option `twin[option]` (itself: nothing to offload). All numbers of tensors by group are looked at, as far
// as `most` simulations go; beyond, one group after the other, until nothing improves.
Found offload(const Problem& problem, const Strategy& strategy, const std::vector<Option>& twin, std::int64_t most);

// Moves from `strategy` to better ones, as long as there are any and no more than `most` were looked at: another option
// for one tensor, or for many of one size; two of one size change theirs; two tensors with a new option each. One
// tensor may take any that is not dominated, several take the cheapest ones.
Found improve(const Problem& problem, const Strategy& strategy, const std::vector<Option>& among, std::int64_t most);

// The best of all strategies with options of `among`. Throws std::invalid_argument where those are more than `most`.
Found brute_force(const Problem& problem, const std::vector<Option>& among, std::int64_t most);

}  // namespace hvd_compress::planner
