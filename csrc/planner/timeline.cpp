#include "timeline.hpp"

#include <algorithm>

namespace hvd_compress::planner {

Timeline::Timeline(const Problem& problem)
    : problem_(problem), chains_(problem.tensors()), next_(problem.tensors()), saved_next_(problem.tensors()) {
    const auto computations = problem.computations().size();
    const std::size_t most = static_cast<std::size_t>(problem.tensors()) * problem.most_tasks() + computations;
    for (int lane = 0; lane < problem.lanes(); ++lane) {
        queues_[lane].resize(most);
        saved_queues_[lane].resize(most);
    }
}

void Timeline::begin(const Strategy& strategy) {
    totals_ = {};
    totals_[kTraining] = problem_.backward_ns();
    for (std::int32_t i = 0; i < problem_.tensors(); ++i) {
        chains_[i] = &problem_.chain_of(i, strategy[i]);
        for (int lane = 0; lane <= kLatency; ++lane) totals_[problem_.lane_of(lane, i)] += chains_[i]->totals[lane];
    }
    point_ = -1;
}

void Timeline::reset() {
    state_ = {};
    state_.end.fill(kNever);
    state_.left = totals_;
    std::fill(next_.begin(), next_.end(), -1);
    push(state_, kTraining, 0, 0);  // the first computation
}

// Arrivals come in the order of time, so only those of the same time are to be put in order.
inline void Timeline::push(State& state, std::int32_t lane, Nanoseconds now, std::int32_t tensor) {
    lane = problem_.lane_of(lane, tensor);
    auto& queue = queues_[lane];
    std::int32_t at = state.tail[lane]++;
    for (; at > state.head[lane] && queue[at - 1].since == now && queue[at - 1].tensor > tensor; --at)
        queue[at] = queue[at - 1];
    queue[at] = {now, tensor};
}

inline void Timeline::completed(State& state, std::int32_t lane, Nanoseconds now) {
    const std::int32_t tensor = state.served[lane];
    state.end[lane] = kNever;
    state.last = now;
    if (next_[tensor] >= 0) {
        const Chain& chain = *chains_[tensor];
        if (++next_[tensor] < chain.length) push(state, chain.tasks[next_[tensor]].lane, now, tensor);
        return;
    }
    const Computation& done = problem_.computations()[state.computation++];
    for (std::int32_t i = done.first; i < done.end; ++i) {
        next_[i] = 0;
        if (chains_[i]->length > 0) push(state, chains_[i]->tasks[0].lane, now, i);
    }
    if (done.end < problem_.tensors()) push(state, kTraining, now, done.end);
}

// Until computation `stop` is about to complete; -1: to the end.
template <bool kObserve>
Nanoseconds Timeline::simulate(Nanoseconds limit, std::int32_t stop) {
    const Computation* const computations = problem_.computations().data();
    const std::int32_t lanes = problem_.lanes();
    State state = state_;  // a local one, which nothing else can change
    Nanoseconds now = state.last;
    for (;;) {
        Nanoseconds next = kNever;
        for (std::int32_t lane = 0; lane < lanes; ++lane) {
            if (state.end[lane] == kNever && state.head[lane] != state.tail[lane]) {
                const std::int32_t tensor = queues_[lane][state.head[lane]++].tensor;
                const std::int32_t task = next_[tensor];
                const Nanoseconds duration =
                    task < 0 ? computations[state.computation].duration : chains_[tensor]->tasks[task].duration;
                if (now + state.left[lane] >= limit) return limit;
                state.left[lane] -= duration;
                state.served[lane] = tensor;
                state.end[lane] = now + duration;
                if (kObserve) spans_.push_back({tensor, task, lane, now, now + duration});
            }
            next = std::min(next, state.end[lane]);
        }
        if (next == kNever) return state.last;
        if (state.computation == stop && state.end[kTraining] == next && next_[state.served[kTraining]] < 0) {
            state_ = state;
            return next;
        }
        now = next;
        for (std::int32_t lane = 0; lane < lanes; ++lane)
            if (state.end[lane] == now) completed(state, lane, now);
    }
}

Nanoseconds Timeline::run(Nanoseconds limit) {
    reset();
    return simulate<false>(limit, -1);
}

void Timeline::run_to(std::int32_t tensor) {
    reset();
    simulate<false>(kNever, problem_.computation_of(tensor));
    point_ = tensor;
    saved_ = state_;
    saved_next_ = next_;
    for (int lane = 0; lane < problem_.lanes(); ++lane)
        std::copy(queues_[lane].begin() + state_.head[lane], queues_[lane].begin() + state_.tail[lane],
                  saved_queues_[lane].begin());
}

Nanoseconds Timeline::run_from(Option option, Nanoseconds limit) {
    const Chain* before = chains_[point_];
    const Chain* chain = &problem_.chain_of(point_, option);
    state_ = saved_;
    std::copy(saved_next_.begin(), saved_next_.end(), next_.begin());
    for (int lane = 0; lane < problem_.lanes(); ++lane) {
        const std::int32_t length = state_.tail[lane] - state_.head[lane];
        std::copy_n(saved_queues_[lane].begin(), length, queues_[lane].begin());
        state_.head[lane] = 0;
        state_.tail[lane] = length;
        state_.left[lane] += added(*chain, *before, lane, point_);
    }
    chains_[point_] = chain;
    const Nanoseconds end = simulate<false>(limit, -1);
    chains_[point_] = before;
    return end;
}

// What an option of a tensor adds to a lane in the place of another one.
inline Nanoseconds Timeline::added(const Chain& then, const Chain& now, std::int32_t lane, std::int32_t tensor) const {
    if (lane >= kLatency && problem_.lane_of(kLatency, tensor) != lane) return 0;
    const std::int32_t own = std::min<std::int32_t>(lane, kLatency);
    return then.totals[own] - now.totals[own];
}

Nanoseconds Timeline::bound() const { return *std::max_element(totals_.begin(), totals_.end()); }

Nanoseconds Timeline::bound(std::int32_t tensor, Option option) const {
    const Chain &now = *chains_[tensor], &then = problem_.chain_of(tensor, option);
    Nanoseconds longest = 0;
    for (int lane = 0; lane < problem_.lanes(); ++lane)
        longest = std::max(longest, totals_[lane] + added(then, now, lane, tensor));
    return longest;
}

Nanoseconds Timeline::bound_from(Option option) const {
    const Chain &now = *chains_[point_], &then = problem_.chain_of(point_, option);
    Nanoseconds longest = 0, in_turn = saved_.end[kTraining];
    for (int lane = 0; lane < problem_.lanes(); ++lane) {
        const Nanoseconds left = saved_.left[lane] + added(then, now, lane, point_);
        if (left == 0) continue;
        const Nanoseconds free = saved_.end[lane] == kNever ? saved_.end[kTraining] : saved_.end[lane];
        longest = std::max(longest, free + left);
    }
    for (const Nanoseconds total : then.totals) in_turn += total;
    return std::max(longest, in_turn);
}

std::vector<Span> Timeline::spans() {
    spans_.clear();
    reset();
    simulate<true>(kNever, -1);
    return spans_;
}

Communication Timeline::communication() {
    const std::int32_t n = problem_.tensors();
    Communication found{std::vector<Nanoseconds>(n, 0)};
    std::vector<Nanoseconds> ready(n, 0), done(n, 0);  // of the first collective; of the task before
    spans();
    for (const Span& span : spans_) {  // those of a tensor in their order
        const bool link = span.task >= 0 && span.lane >= kWithin;
        if (link && found.end[span.tensor] == 0) ready[span.tensor] = done[span.tensor];
        if (link) found.end[span.tensor] = span.end;
        if (span.task >= 0) done[span.tensor] = span.end;
        if (span.task < 0) {
            const Computation& computation = problem_.computations()[problem_.computation_of(span.tensor)];
            for (std::int32_t i = computation.first; i < computation.end; ++i) done[i] = span.end;
        }
    }
    std::vector<std::pair<Nanoseconds, Nanoseconds>> under_way;
    for (std::int32_t i = 0; i < n; ++i)
        if (found.end[i] > 0) under_way.emplace_back(ready[i], found.end[i]);
    std::sort(under_way.begin(), under_way.end());
    Nanoseconds until = 0;
    for (const auto& [begin, end] : under_way) {
        if (begin > until) found.last_bubble = until;
        until = std::max(until, end);
    }
    return found;
}

}  // namespace hvd_compress::planner
