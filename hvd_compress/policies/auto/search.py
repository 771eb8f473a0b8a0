"""Successive halving: which arm makes steps shortest, by few of them, fewest for arms that lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

from hvd_compress.services.agreement import StepTimes

FIRST = 2
"""Steps of each arm in the first round."""
BUDGET = 18
"""Steps of a search, which the second round fills: one more waits for what ranks agree on. The one behind the first
round counts in the second."""
MANY = 5
"""From this number of arms on those that do not begin have one step in the first round: of as many steps, to try more
arms tells more than to try few of them for longer."""
HOPELESS = 1.5
"""An arm whose first step takes so many times the best one is not tried again."""
DOUBTFUL = 2.0
"""An arm whose step cannot take less than so many times the best one, by measured curves, is not tried: a busy machine
makes as much of a difference to them."""
MARGIN = 0.03
"""What a step must save, as a share, to be worth a loss of accuracy: windows of the same code differ by as much."""


class Search:
    """A search over arms, of which the first ones lose least. It is told times a step late.

    It begins with the arm whose collectives are predicted to take the least. The best two of the first round and the
    first arm are compared in a second, in turns, so that what drifts meets them alike.

    What a step waits for exchanges is the arm's; what passes before, the forward and the backward pass, is the same for
    all arms but for what exchanges take from it: kernels, and copies of messages, want cores. So an arm is judged by
    the lower median of what its steps wait, as what disturbs a step only makes it longer, and by the lower median of
    what passes before, over all steps; that of its own steps counts as far as its exchanges can have made it longer. In
    the place of the first arm, which loses nothing, another one is taken where its whole steps do not say the contrary.

    Attributes:
        choice: the arm that was found; None until then.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        """Begin.

        Args:
            weights: by arm, what its time is multiplied by: the steps that it needs, over those of no compression.
            predicted: by arm, the seconds that its collectives take in a step, by measured curves.
        """
        self._weights, self._predicted = weights, predicted
        self.taken: list[list[StepTimes]] = [[] for _ in weights]
        arms = range(len(weights))
        self._round = sorted(arms, key=lambda arm: (predicted[arm] * weights[arm], arm))
        self.first = self._round[0] if arms else 0
        # Twice the first one, and twice the one without compression: what they wait for may say that it was enough.
        few = len(weights) < MANY
        rest = [arm for arm in self._round[1:] if arm != 0]
        begin = dict.fromkeys([self.first, 0])
        self._queue = deque([arm for arm in [*begin, *rest] for _ in range(FIRST if few or arm in begin else 1)])
        self._due = len(self._queue)  # times that this round still waits for
        self._is_first = True
        self.choice: int | None = None if len(weights) > 1 else 0

    def next(self) -> int:
        """Return the arm of the coming step."""
        if self.choice is not None:
            return self.choice
        return self._queue.popleft() if self._queue else self.leader

    @property
    def leader(self) -> int:
        """The best arm so far."""
        known = [arm for arm in self._round if self.taken[arm]]
        return min(known, key=self.score) if known else self.first

    def score(self, arm: int) -> float:
        """Return what a step of an arm takes, in seconds of a step without compression."""
        return self._score(arm, self.taken[arm])

    def not_hidden_s(self, arm: int) -> float:
        """Return what exchanges of an arm take from a step: its wait, and what its backward pass takes longer."""
        return self._not_hidden_s(self.taken[arm])

    def _score(self, arm: int, steps: Sequence[StepTimes]) -> float:
        return self._weights[arm] * (self.before_s + self._not_hidden_s(steps))

    @property
    def before_s(self) -> float:
        """What passes before a step waits for exchanges, in seconds."""
        return median_low([times.before_s for own in self.taken for times in own])

    def _not_hidden_s(self, steps: Sequence[StepTimes]) -> float:
        longer_s = max(0.0, median_low([times.before_s for times in steps]) - self.before_s)
        taken_s = min(longer_s, median_low([times.summed_s for times in steps]))
        return taken_s + median_low([times.waited_s for times in steps])

    def record(self, arm: int, times: StepTimes) -> None:
        """Take the times of a step, as ranks agreed on them."""
        if self.choice is not None:
            return
        self.taken[arm].append(times)
        if arm in self._round and self._due:
            self._due -= 1
        if self._is_first:
            if self._score(arm, [times]) > HOPELESS * self.score(self.leader):
                self._leave_out(arm)
            self._rule_out(arm, times.exchanging_s)
        if not self._due and not self._queue:
            self._end_round()

    def _rule_out(self, arm: int, exchanging_s: float) -> None:
        """Leave out arms whose collectives alone take too long beside a step of this one.

        What passes before the first gradient, such as a validation, is the same for all: what an arm takes more counts
        beside exchanges alone.
        """
        for other in dict.fromkeys(self._queue):
            more_s = self._whole(other, self._predicted[other]) - self._whole(arm, exchanging_s)
            if more_s > (DOUBTFUL - 1) * self._weights[arm] * exchanging_s:
                self._leave_out(other)

    def _whole(self, arm: int, exchanging_s: float) -> float:
        idle_s = median_low([times.whole_s - times.exchanging_s for own in self.taken for times in own])
        return self._weights[arm] * (idle_s + exchanging_s)

    def _leave_out(self, arm: int) -> None:
        self._due -= self._queue.count(arm)
        self._queue = deque(each for each in self._queue if each != arm)

    def _end_round(self) -> None:
        ranked = sorted((arm for arm in self._round if self.taken[arm]), key=self.score)
        limit = HOPELESS * self.score(ranked[0])
        wanted = dict.fromkeys([*ranked[:2], *(arm for arm in ranked if arm == 0)])
        left = [arm for arm in wanted if self.score(arm) <= limit]
        if self._is_first and len(left) > 1:
            self._is_first, self._round = False, left
            # The leader last: the step behind the first round, which waited for times, was its own, and counts as one.
            more = max(1, (BUDGET - sum(map(len, self.taken))) // len(left))
            self._queue = deque(arm for _ in range(more) for arm in reversed(left))
            self._due = len(self._queue)
            return
        close = [arm for arm in left if self.score(arm) <= (1 + MARGIN) * self.score(ranked[0])]
        chosen = min(close)
        self.choice = chosen if 0 not in left or self._beats_first(chosen) else 0

    def _beats_first(self, arm: int) -> bool:
        """Whether an arm saves enough beside the first one, and one of its shorter steps was no longer than that's."""
        own, first = (sorted(self._whole(each, times.exchanging_s) for times in self.taken[each]) for each in (arm, 0))
        return self.score(arm) < (1 - MARGIN) * self.score(0) and own[len(own) // 4] <= median_low(first)
