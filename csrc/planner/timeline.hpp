// The timeline of a strategy (Espresso, section 4.3), and its end F(S), the time of an iteration.
//
// Each lane serves one task at a time, without interruption, in the order in which tasks become ready; of those that
// become ready at the same time the one of the earlier tensor in backward order comes first. Computations are tasks of
// the training lane, in the place of their first tensor: each becomes ready when the one before is done.
#pragma once

#include <limits>
#include <vector>

#include "problem.hpp"

namespace hvd_compress::planner {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

// A task as it ran: of which tensor, the how manyth of its chain (-1: the computation), where and when.
struct Span {
    std::int32_t tensor, task, lane;
    Nanoseconds start, end;
};

// When tensors communicate: from when the first of their collectives is ready to when the last one is done.
struct Communication {
    std::vector<Nanoseconds> end;  // by tensor; 0 where it does not communicate
    Nanoseconds last_bubble = 0;   // when the last bubble began: nothing is under way, and something is to come
};

class Timeline {
  public:
    explicit Timeline(const Problem& problem);

    // Sets the strategy.
    void begin(const Strategy& strategy);

    // Returns F of the strategy; or `limit`, as soon as it is clear that F is no less.
    Nanoseconds run(Nanoseconds limit = kNever);

    // Runs to the time at which the gradient of a tensor is there, which holds for all options of that tensor, and
    // returns a point from which `run_from` goes on with another option. It replaces the point before.
    void run_to(std::int32_t tensor);
    Nanoseconds run_from(Option option, Nanoseconds limit);

    // Lower bounds of F: of the strategy, with another option of a tensor, and the same from the point of `run_to` on.
    // A lane is busy for at least as long as its tasks take.
    Nanoseconds bound() const;
    Nanoseconds bound(std::int32_t tensor, Option option) const;
    Nanoseconds bound_from(Option option) const;

    std::vector<Span> spans();
    Communication communication();

  private:
    struct Waiting {
        Nanoseconds since;
        std::int32_t tensor;
    };

    struct State {
        std::array<Nanoseconds, kLanes> end;      // of what the lane serves; kNever: it is idle
        std::array<std::int32_t, kLanes> served;  // tensor
        std::array<std::int32_t, kLanes> head, tail;
        Totals left;  // durations of what has not started yet
        std::int32_t computation;
        Nanoseconds last;  // completion
    };

    template <bool kObserve>
    Nanoseconds simulate(Nanoseconds limit, std::int32_t stop);
    void reset();
    void push(State& state, std::int32_t lane, Nanoseconds now, std::int32_t tensor);
    Nanoseconds added(const Chain& then, const Chain& now, std::int32_t lane, std::int32_t tensor) const;
    void completed(State& state, std::int32_t lane, Nanoseconds now);

    const Problem& problem_;
    std::vector<const Chain*> chains_;
    Totals totals_{};
    State state_{}, saved_{};
    std::vector<std::int32_t> next_, saved_next_;  // by tensor: its next task; -1 before its computation
    std::array<std::vector<Waiting>, kLanes> queues_, saved_queues_;
    std::int32_t point_ = -1;  // tensor
    std::vector<Span> spans_;
};

}  // namespace hvd_compress::planner
