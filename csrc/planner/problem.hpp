// What is to be planned: tensors in backward order, and for each option of each size the tasks that it is made of.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace hvd_compress::planner {

using Nanoseconds = std::int64_t;

// What serves one task after the other. Training and compression on its device contend for kTraining; kHost is the CPU
// beside a GPU; the links within a host and across hosts are two. A task of kLatency runs on the track of its tensor,
// kLatency + tensor % tracks: as many latencies as tracks may pass at the same time.
enum Lane : std::int32_t { kTraining, kHost, kWithin, kAcross, kLatency };
constexpr int kMostTracks = 8;
constexpr int kLanes = kLatency + kMostTracks;
using Totals = std::array<Nanoseconds, kLanes>;

struct Task {
    Nanoseconds duration;
    std::int32_t lane;
};

// The tasks of a tensor after its gradient is there, one after the other.
struct Chain {
    const Task* tasks = nullptr;
    std::int32_t length = 0;
    Totals totals{};  // of the durations, by lane of the tasks
};

// Tensors whose gradients become ready together: the first of them, and those whose computation takes no time.
struct Computation {
    Nanoseconds duration;
    std::int32_t first, end;
};

using Option = std::int32_t;
using Strategy = std::vector<Option>;  // by tensor

class Problem {
  public:
    // backward: durations by tensor, in backward order. size: of each tensor, a row of `prices`. options: kinds of
    // tasks, by option. lane: by kind. prices: durations by size and kind; a task of duration 0 is left out. tracks:
    // how many latencies may pass at a time. Throws std::invalid_argument where an index or a duration is out of range.
    Problem(const std::vector<Nanoseconds>& backward, std::vector<std::int32_t> size,
            const std::vector<std::vector<std::int32_t>>& options, const std::vector<std::int32_t>& lane,
            const std::vector<std::vector<Nanoseconds>>& prices, std::int32_t tracks);
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    std::int32_t tensors() const { return static_cast<std::int32_t>(size_.size()); }
    std::int32_t sizes() const { return sizes_; }
    Option options() const { return options_; }
    std::int32_t size_of(std::int32_t tensor) const { return size_[tensor]; }
    const Chain& chain(std::int32_t size, Option option) const { return chains_[size * options_ + option]; }
    const Chain& chain_of(std::int32_t tensor, Option option) const { return chain(size_[tensor], option); }
    const std::vector<Computation>& computations() const { return computations_; }
    std::int32_t computation_of(std::int32_t tensor) const { return computation_of_[tensor]; }
    Nanoseconds backward_ns() const { return backward_ns_; }
    std::int32_t most_tasks() const { return most_tasks_; }

    // How many lanes there are, and the one of a tensor's task whose own is `lane`.
    std::int32_t lanes() const { return kLatency + tracks_; }
    std::int32_t lane_of(std::int32_t lane, std::int32_t tensor) const {
        return lane < kLatency ? lane : kLatency + tensor % tracks_;
    }

    // Throws std::invalid_argument where it is no strategy for these tensors.
    void check(const Strategy& strategy) const;
    // The same for options.
    void check_options(const std::vector<Option>& options) const;

    // Of `among`, in its order, those that no other surely beats at a size: another one has the same tasks, or fewer,
    // in the same order, and none that takes longer. Of equals the first one stays.
    std::vector<Option> undominated(std::int32_t size, const std::vector<Option>& among) const;

    // Those of them for which no other keeps every lane busy for a shorter time: far fewer. One that is left out may
    // still be the best, by the order of its tasks.
    std::vector<Option> cheapest(std::int32_t size, const std::vector<Option>& among) const;

    // What the tasks of each option take for a tensor of a size, one after the other.
    std::vector<Nanoseconds> times(std::int32_t size) const;

  private:
    template <class Beats>
    std::vector<Option> best(std::int32_t size, const std::vector<Option>& among, Beats beats) const;
    void add_computations(const std::vector<Nanoseconds>& backward);

    std::vector<std::int32_t> size_, computation_of_;
    std::int32_t sizes_ = 0, most_tasks_ = 0;
    Option options_ = 0;
    std::int32_t tracks_ = 1;
    std::vector<Task> tasks_;
    std::vector<Chain> chains_;
    std::vector<Computation> computations_;
    Nanoseconds backward_ns_ = 0;
};

}  // namespace hvd_compress::planner
