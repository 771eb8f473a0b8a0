"""Successive halving: which arm makes steps shortest, by few of them, fewest for arms that lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

FIRST, MORE = 2, 3
"""Steps of each arm in the first round, and of those that are left in the second: with four arms 17, and one behind
each round that waits for what ranks agree on."""
MANY = 5
"""From so many arms on others than the first have one step in the first round, and two in the second: with eleven 18
and two. Of as many steps, to try more arms tells more than to try few of them for longer."""
HOPELESS = 1.5
"""An arm whose first step takes so many times the best one is not tried again."""
MARGIN = 0.03
"""What a step must save, as a share, to be worth a loss of accuracy: windows of the same code differ by as much."""


class Search:
    """A search over arms, of which the first ones lose least. It is told times a step late.

    The best two of the first round and the first arm are compared in a second, in turns, so that what drifts meets them
    alike. What disturbs a step only makes it longer: an arm is judged by the lower median of its steps. In the place of
    the first arm, which loses nothing, one is taken that beats it with all its steps but one.

    Attributes:
        choice: the arm that was found; None until then.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        """Begin.

        Args:
            weights: by arm, what its time is multiplied by: the steps that it needs, over those of no compression.
            predicted: by arm, by which the first round is ordered; the first arm is always tried first.
        """
        self._weights, self._predicted = weights, predicted
        self.seconds: list[list[float]] = [[] for _ in weights]
        order = sorted(range(1, len(weights)), key=predicted.__getitem__)
        self._round = [0, *order]
        # The first two in turns: what the first step waits for may say that it was enough of it.
        if len(weights) < MANY:
            queue, self._more = [*(FIRST * self._round[:2]), *(n for n in self._round[2:] for _ in range(FIRST))], MORE
        else:
            queue, self._more = [*self._round[:2], 0, *self._round[2:]], MORE - 1
        self._queue = deque(queue)
        self._due = len(self._queue)  # times that this round still waits for
        self._is_first = True
        self.choice: int | None = None if order else 0

    def next(self) -> int:
        """Return the arm of the coming step."""
        if self.choice is not None:
            return self.choice
        return self._queue.popleft() if self._queue else self.leader

    @property
    def leader(self) -> int:
        """The best arm so far."""
        known = [arm for arm in self._round if self.seconds[arm]]
        return min(known, key=self.score) if known else 0

    def score(self, arm: int) -> float:
        """Return what a step of an arm takes, in seconds of a step without compression."""
        return self._weights[arm] * median_low(self.seconds[arm])

    def record(self, arm: int, seconds: float) -> None:
        """Take the time of a step, as ranks agreed on it."""
        if self.choice is not None:
            return
        self.seconds[arm].append(seconds)
        if arm in self._round and self._due:
            self._due -= 1
        best = min(self.score(each) for each in self._round if self.seconds[each])
        if self._is_first and self._weights[arm] * seconds > HOPELESS * best:
            self._leave_out(arm)
        if not self._due and not self._queue:
            self._end_round()

    def trust(self) -> None:
        """Steps are spent waiting: leave out arms that have lost by what collectives are predicted to take."""
        costs = [weight * cost for weight, cost in zip(self._weights, self._predicted, strict=True)]
        for arm, cost in enumerate(costs):
            if self._is_first and cost > HOPELESS * min(costs):
                self._leave_out(arm)

    def _leave_out(self, arm: int) -> None:
        self._due -= self._queue.count(arm)
        self._queue = deque(each for each in self._queue if each != arm)

    def _end_round(self) -> None:
        ranked = sorted((arm for arm in self._round if self.seconds[arm]), key=self.score)
        limit = HOPELESS * self.score(ranked[0])
        left = [arm for arm in dict.fromkeys([*ranked[:2], 0]) if self.score(arm) <= limit]
        if self._is_first and len(left) > 1:
            self._is_first, self._round = False, left
            self._queue = deque(arm for _ in range(self._more) for arm in left)
            self._due = len(self._queue)
            return
        close = [arm for arm in left if self.score(arm) <= (1 + MARGIN) * self.score(ranked[0])]
        chosen = min(close)
        self.choice = chosen if 0 not in left or self._beats_first(chosen) else 0

    def _beats_first(self, arm: int) -> bool:
        seconds = sorted(self.seconds[arm])
        return self._weights[arm] * seconds[-2 if len(seconds) > 2 else -1] < (1 - MARGIN) * self.score(0)
