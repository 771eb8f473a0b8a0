#include "problem.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace hvd_compress::planner {
namespace {

constexpr Nanoseconds kLongest = Nanoseconds{1} << 44;  // of a task, almost 5 hours: sums of 500,000 do not overflow

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// Whether `better` keeps no lane busy for longer.
bool costs_less(const Chain& better, const Chain& worse) {
    for (int lane = 0; lane <= kLatency; ++lane)
        if (better.totals[lane] > worse.totals[lane]) return false;
    return true;
}

// Whether `better` is `worse` with tasks left out or shortened.
bool beats(const Chain& better, const Chain& worse) {
    if (!costs_less(better, worse)) return false;
    std::int32_t at = 0;
    for (std::int32_t i = 0; i < better.length; ++i, ++at) {
        const Task& wanted = better.tasks[i];
        while (at < worse.length && (worse.tasks[at].lane != wanted.lane || worse.tasks[at].duration < wanted.duration))
            ++at;
        if (at == worse.length) return false;
    }
    return true;
}

}  // namespace

Problem::Problem(const std::vector<Nanoseconds>& backward, std::vector<std::int32_t> size,
                 const std::vector<std::vector<std::int32_t>>& options, const std::vector<std::int32_t>& lane,
                 const std::vector<std::vector<Nanoseconds>>& prices, std::int32_t tracks)
    : size_(std::move(size)),
      sizes_(static_cast<std::int32_t>(prices.size())),
      options_(static_cast<Option>(options.size())),
      tracks_(tracks) {
    require(tracks >= 1 && tracks <= kMostTracks, "there are 1 to 8 tracks");
    require(!backward.empty() && backward.size() == size_.size(), "as many durations as sizes are needed, at least 1");
    require(!options.empty(), "there are no options");
    for (const std::int32_t at : size_) require(at >= 0 && at < sizes_, "a tensor has a size without prices");
    for (const std::int32_t at : lane) require(at >= 0 && at <= kLatency, "there is no such lane");
    for (const auto& row : prices) {
        require(row.size() == lane.size(), "each size needs a price for each kind of task");
        for (const Nanoseconds price : row)
            require(price >= 0 && price <= kLongest, "a task takes negative time, or more than 4 hours");
    }
    add_computations(backward);
    std::size_t in_all = 0;
    for (const auto& kinds : options) {
        for (const std::int32_t kind : kinds)
            require(kind >= 0 && kind < static_cast<std::int32_t>(lane.size()),
                    "an option has an unknown kind of task");
        in_all += kinds.size();
        most_tasks_ = std::max(most_tasks_, static_cast<std::int32_t>(kinds.size()));
    }
    tasks_.reserve(in_all * prices.size());  // chains point into it
    chains_.reserve(options.size() * prices.size());
    for (const auto& row : prices) {
        for (const auto& kinds : options) {
            Chain chain;
            chain.tasks = tasks_.data() + tasks_.size();
            for (const std::int32_t kind : kinds) {
                if (row[kind] == 0) continue;
                tasks_.push_back({row[kind], lane[kind]});
                chain.totals[lane[kind]] += row[kind];
                ++chain.length;
            }
            chains_.push_back(chain);
        }
    }
}

void Problem::add_computations(const std::vector<Nanoseconds>& backward) {
    for (std::int32_t i = 0; i < tensors(); ++i) {
        require(backward[i] >= 0 && backward[i] <= kLongest, "a computation takes negative time, or more than 4 hours");
        backward_ns_ += backward[i];
        if (i == 0 || backward[i] > 0) computations_.push_back({backward[i], i, i});
        computations_.back().end = i + 1;
        computation_of_.push_back(static_cast<std::int32_t>(computations_.size()) - 1);
    }
}

void Problem::check(const Strategy& strategy) const {
    require(static_cast<std::int32_t>(strategy.size()) == tensors(), "a strategy has an option for each tensor");
    check_options(strategy);
}

void Problem::check_options(const std::vector<Option>& options) const {
    for (const Option option : options) require(option >= 0 && option < options_, "there is no such option");
}

template <class Beats>
std::vector<Option> Problem::best(std::int32_t size, const std::vector<Option>& among, Beats beats) const {
    require(size >= 0 && size < sizes_, "there is no such size");
    check_options(among);
    std::vector<Option> kept;
    for (const Option option : among) {
        const Chain& mine = chain(size, option);
        const auto beaten = [&](Option other) { return beats(chain(size, other), mine); };
        if (std::any_of(kept.begin(), kept.end(), beaten)) continue;
        const auto worse = [&](Option other) { return beats(mine, chain(size, other)); };
        kept.erase(std::remove_if(kept.begin(), kept.end(), worse), kept.end());
        kept.push_back(option);
    }
    return kept;
}

std::vector<Option> Problem::undominated(std::int32_t size, const std::vector<Option>& among) const {
    return best(size, among, beats);
}

std::vector<Option> Problem::cheapest(std::int32_t size, const std::vector<Option>& among) const {
    return best(size, among, costs_less);
}

std::vector<Nanoseconds> Problem::times(std::int32_t size) const {
    require(size >= 0 && size < sizes_, "there is no such size");
    std::vector<Nanoseconds> times;
    for (Option option = 0; option < options_; ++option) {
        const Totals& totals = chain(size, option).totals;
        times.push_back(std::accumulate(totals.begin(), totals.end(), Nanoseconds{0}));
    }
    return times;
}

}  // namespace hvd_compress::planner
