"""Which arm, step by step: a search, then a detector, and a search again where the network has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from hvd_compress.policies.auto.detector import THRESHOLD, Detector
from hvd_compress.policies.auto.search import MARGIN, Search

WINDOW, WINDOW_S, LONGEST = 4, 0.5, 32
"""Steps after which ranks compare times again, at least how many seconds they take where they are short, as to compare
them takes some milliseconds where ranks share cores, and how many steps that is at most."""
WAITING = 0.7
"""The share of exchanges without compression that no backward pass hides from which on the network alone decides."""
SAME = 0.2
"""Times of an arm whose logarithms differ by less are those of one network: to search again was in vain."""


@dataclass(frozen=True)
class StepTimes:
    """What ranks agree on of a step.

    Attributes:
        whole_s: from the end of the step before to its end, the mean over ranks: who waits for whom cancels out.
        exchanging_s: from the first gradient to the end, on the rank that came last, which waited for nobody.
        waited_s: of that, what no backward pass has hidden.
    """

    whole_s: float
    exchanging_s: float
    waited_s: float


class Chooser:
    """Chooses an arm for each step, from times that are told late. The same on all ranks, as times are.

    Attributes:
        changed: whether the network should be measured again; `again()` answers it.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        self.search = Search(weights, predicted)
        self.changed = False
        self._detector: Detector | None = None
        self._window: list[StepTimes] = []
        self._times: dict[int, list[StepTimes]] = {}
        self._chosen_before: tuple[int, float] | None = None  # with what its exchanges took

    @property
    def settled(self) -> bool:
        """Whether an arm was chosen, and none is tried."""
        return self.search.choice is not None

    @property
    def every(self) -> int:
        """After how many steps ranks are to compare times."""
        if not self.settled:
            return 1
        known = self._times.get(self.search.next(), [])
        step_s = median_low([times.whole_s for times in known[-WINDOW:]]) if known else WINDOW_S
        return max(WINDOW, min(LONGEST, math.ceil(WINDOW_S / max(step_s, 1e-4))))

    def next(self) -> int:
        """Return the arm of the coming step."""
        return self.search.next()

    def waited_s(self, arm: int) -> float:
        """Return what steps of an arm waited, of those that were tried; NaN where none was."""
        known = self._times.get(arm, [])
        return median_low([times.waited_s for times in known]) if known else math.nan

    def record(self, steps: Sequence[tuple[int, StepTimes]]) -> None:
        """Take steps that ranks have agreed on: the arm of each, and what it took."""
        for arm, times in steps:
            if not self.settled:
                self._times.setdefault(arm, []).append(times)
                self._search(arm, times)
            elif arm == self.search.choice:
                self._window.append(times)
        if self.settled and len(self._window) >= self.every:
            exchanging_s = median_low([times.exchanging_s for times in self._window])
            self._window = []
            if self._detector is not None:  # else there is one arm
                self.changed = self._detector.add(exchanging_s) or self.changed

    def _search(self, arm: int, times: StepTimes) -> None:
        if arm == 0 and len(self._times[0]) == 1 and times.waited_s >= WAITING * times.exchanging_s:
            self.search.trust()
        self.search.record(arm, times.whole_s)
        first = self._times.get(0, [])
        if arm == 0 and len(first) == 2 and self.search.choice is None:
            least = min(first, key=lambda each: each.whole_s)
            if least.waited_s <= MARGIN * least.whole_s:
                self.search.choice = 0  # nothing that sends less could save more
        if self.settled:
            self._begin_watching()

    def _begin_watching(self) -> None:
        """A false alarm doubles the threshold of the next one."""
        choice = self.search.choice
        assert choice is not None
        self._window, seconds, threshold = [], self._exchanging_s(choice), THRESHOLD
        if self._chosen_before is not None and self._detector is not None:
            arm, level_s = self._chosen_before
            if arm == choice and abs(math.log(seconds / level_s)) < SAME:
                threshold = 2 * self._detector.threshold
        self._detector = Detector(seconds, threshold)

    def _exchanging_s(self, arm: int) -> float:
        return median_low([times.exchanging_s for times in self._times[arm]])

    def again(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        """The network was measured again: search again."""
        arm = self.search.choice
        assert arm is not None
        self._chosen_before = arm, self._exchanging_s(arm)
        self.search, self.changed = Search(weights, predicted), False
        self._times, self._window = {}, []
        if self.settled:  # there is one arm now
            self._detector = None
