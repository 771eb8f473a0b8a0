"""Successive halving: which arm makes steps shortest, by few of them, fewest for arms that lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

FIRST = 2
"""Steps of each arm in the first round."""
BUDGET = 18
"""Steps of a search, which the second round fills: one more waits for what ranks agree on. The one behind the first
round counts in the second."""
MANY = 5
"""From so many arms on those that do not begin have one step in the first round. Of as many steps, to try more arms
tells more than to try few of them for longer."""
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
    first arm are compared in a second, in turns, so that what drifts meets them alike. What disturbs a step only makes
    it longer: an arm is judged by the lower median of its steps. In the place of the first arm, which loses nothing,
    one is taken that beats it with all its steps but one.

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
        self.seconds: list[list[float]] = [[] for _ in weights]
        self._beside_s: list[float] = []  # of each step, what passed before its first gradient
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
        known = [arm for arm in self._round if self.seconds[arm]]
        return min(known, key=self.score) if known else self.first

    def score(self, arm: int) -> float:
        """Return what a step of an arm takes, in seconds of a step without compression."""
        return self._whole(arm, median_low(self.seconds[arm]))

    def _whole(self, arm: int, exchanging_s: float) -> float:
        """What passes before the first gradient is no matter of arms: the median of all steps counts, without noise."""
        return self._weights[arm] * (median_low(self._beside_s) + exchanging_s)

    def record(self, arm: int, seconds: float, exchanging_s: float) -> None:
        """Take the time of a step, as ranks agreed on it.

        Args:
            exchanging_s: of that, what passed from the first gradient on.
        """
        if self.choice is not None:
            return
        self.seconds[arm].append(exchanging_s)
        self._beside_s.append(seconds - exchanging_s)
        if arm in self._round and self._due:
            self._due -= 1
        if self._is_first:
            if self._whole(arm, exchanging_s) > HOPELESS * self.score(self.leader):
                self._leave_out(arm)
            self._rule_out(arm, exchanging_s)
        if not self._due and not self._queue:
            self._end_round()

    def _rule_out(self, arm: int, exchanging_s: float) -> None:
        """Leave out arms whose collectives alone take too long beside a step of this one.

        What passes before the first gradient, such as a validation, is the same for all: without it, where an arm needs
        as many steps at least.
        """
        for other in dict.fromkeys(self._queue):
            taken_s = self._predicted[other]
            longer = self._weights[other] >= self._weights[arm] and taken_s > DOUBTFUL * exchanging_s
            if longer or self._whole(other, taken_s) > DOUBTFUL * self._whole(arm, exchanging_s):
                self._leave_out(other)

    def _leave_out(self, arm: int) -> None:
        self._due -= self._queue.count(arm)
        self._queue = deque(each for each in self._queue if each != arm)

    def _end_round(self) -> None:
        ranked = sorted((arm for arm in self._round if self.seconds[arm]), key=self.score)
        limit = HOPELESS * self.score(ranked[0])
        wanted = dict.fromkeys([*ranked[:2], *(arm for arm in ranked if arm == 0)])
        left = [arm for arm in wanted if self.score(arm) <= limit]
        if self._is_first and len(left) > 1:
            self._is_first, self._round = False, left
            # The leader last: the step behind the first round, which waited for times, was its own, and counts as one.
            more = max(1, (BUDGET - len(self._beside_s)) // len(left))
            self._queue = deque(arm for _ in range(more) for arm in reversed(left))
            self._due = len(self._queue)
            return
        close = [arm for arm in left if self.score(arm) <= (1 + MARGIN) * self.score(ranked[0])]
        chosen = min(close)
        self.choice = chosen if 0 not in left or self._beats_first(chosen) else 0

    def _beats_first(self, arm: int) -> bool:
        seconds = sorted(self.seconds[arm])
        return self._whole(arm, seconds[-2 if len(seconds) > 2 else -1]) < (1 - MARGIN) * self.score(0)
