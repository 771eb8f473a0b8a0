"""Successive halving: which arm makes steps shortest, by few of them, fewest for arms that lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

FIRST, MORE = 2, 3
"""Steps of each arm in the first round, and of the best two in the second: with five arms 18, and one that waits for
what ranks agree on behind each round."""
HOPELESS = 1.5
"""An arm whose first step takes so many times the best one is not tried again."""
MARGIN = 0.03
"""What a step must save, as a share, to be worth a loss of accuracy: windows of the same code differ by as much."""


class Search:
    """A search over arms, of which the first ones lose least. It is told times a step late.

    The best of the first round are compared in a second, in turns, so that what drifts meets them alike. The median of
    an arm's steps counts, the lower one: what disturbs a step only makes it longer.

    Attributes:
        choice: the arm that was found; None until then.
        tried: how many steps were given away so far.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        """Begin.

        Args:
            weights: by arm, what its time is multiplied by: the steps that it needs, over those of no compression.
            predicted: by arm, by which the first round is ordered; the first arm is always tried first.
        """
        self._weights = weights
        self.seconds: list[list[float]] = [[] for _ in weights]
        order = sorted(range(1, len(weights)), key=predicted.__getitem__)
        self._round = [0, *order]
        self._queue = deque(arm for arm in self._round for _ in range(FIRST))
        self._due = len(self._queue)  # times that this round still waits for
        self._is_first = True
        self.choice: int | None = None if order else 0
        self.tried = 0

    def next(self) -> int:
        """Return the arm of the coming step."""
        if self.choice is not None:
            return self.choice
        self.tried += 1
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
        if self._is_first and self._weights[arm] * seconds > HOPELESS * best and arm in self._queue:
            self._queue = deque(each for each in self._queue if each != arm)
            self._due -= FIRST - 1
        if not self._due and not self._queue:
            self._end_round()

    def _end_round(self) -> None:
        ranked = sorted((arm for arm in self._round if self.seconds[arm]), key=self.score)
        close = [arm for arm in ranked[:2] if self.score(arm) <= HOPELESS * self.score(ranked[0])]
        if self._is_first and len(close) > 1:
            self._is_first, self._round = False, close
            self._queue = deque(arm for _ in range(MORE) for arm in close)
            self._due = len(self._queue)
            return
        limit = (1 + MARGIN) * self.score(ranked[0])
        self.choice = min(arm for arm in ranked if self.score(arm) <= limit)
