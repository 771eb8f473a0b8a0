#include "search.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

namespace hvd_compress::planner {
namespace {

using BySize = std::vector<std::vector<Option>>;

BySize cheapest(const Problem& problem, const std::vector<Option>& among) {
    BySize options;
    for (std::int32_t size = 0; size < problem.sizes(); ++size) options.push_back(problem.cheapest(size, among));
    return options;
}

BySize undominated(const Problem& problem, const std::vector<Option>& among) {
    BySize options;
    for (std::int32_t size = 0; size < problem.sizes(); ++size) options.push_back(problem.undominated(size, among));
    return options;
}

// A strategy, its F, and the timeline by which both change.
class Search {
  public:
    Search(const Problem& problem, Strategy strategy) : timeline_(problem), found_{std::move(strategy), 0, 1, true} {
        problem.check(found_.strategy);
        timeline_.begin(found_.strategy);
        found_.end = timeline_.run();
    }

    const Found& found() const { return found_; }
    Found& found() { return found_; }
    Timeline& timeline() { return timeline_; }
    const Strategy& strategy() const { return found_.strategy; }

    // Gives a tensor the best of these options, if it is better than its own. Returns whether it is.
    bool choose(std::int32_t tensor, const std::vector<Option>& options) {
        const Option own = found_.strategy[tensor];
        open_.clear();
        for (const Option option : options)
            if (option != own && timeline_.bound(tensor, option) < found_.end) open_.push_back({0, option});
        if (open_.empty()) return false;
        timeline_.run_to(tensor);
        for (auto& [bound, option] : open_) bound = timeline_.bound_from(option);
        std::sort(open_.begin(), open_.end());  // those that may gain most come first: others then end early
        Option best = own;
        for (const auto& [bound, option] : open_) {
            if (bound >= found_.end) break;
            ++found_.simulations;
            const Nanoseconds end = timeline_.run_from(option, found_.end);
            if (end < found_.end) {
                found_.end = end;
                best = option;
            }
        }
        if (best == own) return false;
        found_.strategy[tensor] = best;
        timeline_.begin(found_.strategy);
        return true;
    }

    // Takes another strategy, if it is better.
    bool take(const Strategy& other) {
        timeline_.begin(other);
        Nanoseconds end = found_.end;
        if (timeline_.bound() < found_.end) {
            ++found_.simulations;
            end = timeline_.run(found_.end);
        }
        if (end < found_.end) {
            found_.strategy = other;
            found_.end = end;
            return true;
        }
        timeline_.begin(found_.strategy);
        return false;
    }

  private:
    Timeline timeline_;
    Found found_;
    std::vector<std::pair<Nanoseconds, Option>> open_;
};

// Whether all that a tensor communicates is done before the last bubble.
bool before_bubble(const Communication& communication, std::int32_t tensor) {
    return communication.end[tensor] <= communication.last_bubble;
}

bool compresses(const Chain& chain) { return chain.totals[kTraining] > 0 || chain.totals[kHost] > 0; }

std::vector<std::int32_t> descending(const Problem& problem, const std::vector<std::int64_t>& numel) {
    std::vector<std::int32_t> order(problem.tensors());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        const std::int64_t left = numel[problem.size_of(a)], right = numel[problem.size_of(b)];
        return left != right ? left > right : a > b;
    });
    return order;
}

// Groups of Algorithm 2, and how many of each are offloaded.
class Offloading {
  public:
    Offloading(const Problem& problem, const Strategy& strategy, const std::vector<Option>& twin, std::int64_t most)
        : twin_(twin), most_(most), search_(problem, strategy), now_(strategy) {
        std::map<std::pair<std::int32_t, Option>, std::vector<std::int32_t>> groups;
        for (std::int32_t i = 0; i < problem.tensors(); ++i)
            if (twin[strategy[i]] != strategy[i]) groups[{problem.size_of(i), strategy[i]}].push_back(i);
        for (auto& [key, tensors] : groups) groups_.push_back(std::move(tensors));
        double choices = 1;
        for (const auto& group : groups_) choices *= static_cast<double>(group.size() + 1);
        exhaustive_ = choices <= static_cast<double>(most);
    }

    Found run(const Strategy& strategy) {
        search_.found().complete = exhaustive_;
        if (exhaustive_) {
            each(strategy, 0);
            return search_.found();
        }
        for (;;) {
            const Nanoseconds before = search_.found().end;
            for (const auto& group : groups_)
                if (search_.found().simulations < most_) one(strategy, group);
            if (search_.found().end == before) break;
        }
        return search_.found();
    }

  private:
    void each(const Strategy& strategy, std::size_t depth) {
        if (depth == groups_.size()) {
            search_.take(now_);
            return;
        }
        const auto& group = groups_[depth];
        each(strategy, depth + 1);
        for (const std::int32_t tensor : group) {
            now_[tensor] = twin_[strategy[tensor]];
            each(strategy, depth + 1);
        }
        for (const std::int32_t tensor : group) now_[tensor] = strategy[tensor];
    }

    void one(const Strategy& strategy, const std::vector<std::int32_t>& group) {
        now_ = search_.strategy();
        for (const std::int32_t tensor : group) now_[tensor] = strategy[tensor];
        search_.take(now_);
        for (const std::int32_t tensor : group) {
            now_[tensor] = twin_[strategy[tensor]];
            search_.take(now_);
        }
    }

    const std::vector<Option>& twin_;
    const std::int64_t most_;
    Search search_;
    Strategy now_;
    std::vector<std::vector<std::int32_t>> groups_;
    bool exhaustive_ = true;
};

// Local search, one neighbourhood after the other, from small to large; back to the first one whenever one improves.
class Improvement {
  public:
    Improvement(const Problem& problem, const Strategy& strategy, const std::vector<Option>& among, std::int64_t most)
        : problem_(problem),
          most_(most),
          options_(cheapest(problem, among)),
          all_(undominated(problem, among)),
          of_size_(problem.sizes()),
          search_(problem, strategy) {
        for (std::int32_t i = 0; i < problem.tensors(); ++i) of_size_[problem.size_of(i)].push_back(i);
    }

    Found run() {
        while (within_budget() && (singles(options_) || groups() || singles(all_) || exchanges() || pairs())) continue;
        search_.found().complete = within_budget();
        return search_.found();
    }

  private:
    bool within_budget() const { return looks_ < most_; }

    bool take(const Strategy& other) {
        ++looks_;
        return search_.take(other);
    }

    bool singles(const BySize& by_size) {
        bool better = false;
        for (std::int32_t i = problem_.tensors() - 1; i >= 0 && within_budget(); --i) {
            const auto& options = by_size[problem_.size_of(i)];
            looks_ += static_cast<std::int64_t>(options.size());
            better |= search_.choose(i, options);
        }
        return better;
    }

    // All tensors of a size, their first half or their second one take the same option.
    bool groups() {
        bool better = false;
        for (const auto& tensors : of_size_) {
            const std::size_t n = tensors.size(), half = n / 2;
            if (n < 2) continue;
            for (const auto& [begin, end] :
                 {std::pair{std::size_t{0}, n}, std::pair{half, n}, std::pair{std::size_t{0}, half}})
                for (const Option option : options_[problem_.size_of(tensors[0])])
                    better |= within_budget() && group(tensors, begin, end, option);
        }
        return better;
    }

    bool group(const std::vector<std::int32_t>& tensors, std::size_t begin, std::size_t end, Option option) {
        Strategy other = search_.strategy();
        for (std::size_t i = begin; i < end; ++i) other[tensors[i]] = option;
        return other != search_.strategy() && take(other);
    }

    bool exchanges() {
        bool better = false;
        for (const auto& tensors : of_size_) {
            for (std::size_t i = 0; i < tensors.size(); ++i) {
                for (std::size_t j = i + 1; j < tensors.size() && within_budget(); ++j) {
                    Strategy other = search_.strategy();
                    if (other[tensors[i]] == other[tensors[j]]) continue;
                    std::swap(other[tensors[i]], other[tensors[j]]);
                    better |= take(other);
                }
            }
        }
        return better;
    }

    bool pairs() {
        for (std::int32_t j = problem_.tensors() - 1; j > 0; --j)
            for (std::int32_t i = j - 1; i >= 0 && within_budget(); --i)
                if (pair(i, j)) return true;
        return false;
    }

    bool pair(std::int32_t i, std::int32_t j) {
        Strategy other = search_.strategy();
        const Option own_first = other[i], own_second = other[j];
        for (const Option first : options_[problem_.size_of(i)]) {
            other[i] = first;
            for (const Option second : options_[problem_.size_of(j)]) {
                if (first == own_first || second == own_second) continue;
                other[j] = second;
                if (!within_budget()) return false;
                if (take(other)) return true;
            }
        }
        return false;
    }

    const Problem& problem_;
    const std::int64_t most_;
    std::int64_t looks_ = 0;
    const BySize options_, all_;
    std::vector<std::vector<std::int32_t>> of_size_;
    Search search_;
};

}  // namespace

Found select(const Problem& problem, const std::vector<std::int64_t>& numel, const std::vector<Option>& among,
             Option first) {
    if (static_cast<std::int32_t>(numel.size()) != problem.sizes())
        throw std::invalid_argument("each size has a number of elements");
    const BySize options = cheapest(problem, among);
    Search search(problem, Strategy(problem.tensors(), first));
    Communication communication = search.timeline().communication();
    for (const std::int32_t tensor : descending(problem, numel)) {
        const bool compressed = compresses(problem.chain_of(tensor, first));
        if (!compressed && before_bubble(communication, tensor)) continue;
        if (search.choose(tensor, options[problem.size_of(tensor)])) communication = search.timeline().communication();
    }
    return search.found();
}

Found offload(const Problem& problem, const Strategy& strategy, const std::vector<Option>& twin, std::int64_t most) {
    if (static_cast<Option>(twin.size()) != problem.options())
        throw std::invalid_argument("each option has a twin, or is its own");
    problem.check_options(twin);
    return Offloading(problem, strategy, twin, most).run(strategy);
}

Found improve(const Problem& problem, const Strategy& strategy, const std::vector<Option>& among, std::int64_t most) {
    return Improvement(problem, strategy, among, most).run();
}

Found brute_force(const Problem& problem, const std::vector<Option>& among, std::int64_t most) {
    problem.check_options(among);
    double all = 1;
    for (std::int32_t i = 0; i < problem.tensors(); ++i) all *= static_cast<double>(among.size());
    if (among.empty() || all > static_cast<double>(most))
        throw std::invalid_argument("there are too many strategies to look at all of them");
    std::vector<std::size_t> at(problem.tensors(), 0);
    Strategy strategy(problem.tensors(), among[0]);
    Search search(problem, strategy);
    for (;;) {
        std::int32_t i = 0;
        while (i < problem.tensors() && ++at[i] == among.size()) at[i++] = 0;
        if (i == problem.tensors()) return search.found();
        for (std::int32_t j = 0; j <= i; ++j) strategy[j] = among[at[j]];
        search.take(strategy);
    }
}

}  // namespace hvd_compress::planner
