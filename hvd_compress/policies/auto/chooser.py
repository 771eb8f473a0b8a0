"""Which arm, step by step: a search, then a detector, and a search again where the network has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from hvd_compress.policies.agreement import WINDOW, StepTimes, window
from hvd_compress.policies.auto.search import MARGIN, Search
from hvd_compress.policies.detector import THRESHOLD, Detector


class Chooser:
    """Chooses an arm for each step, from times that are told late. The same on all ranks, as times are.

    Attributes:
        changed: whether the network should be measured again; `again()` answers it.
        hidden: whether the first arm was chosen as its exchanges are hidden but for less than `MARGIN` of a step.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float]) -> None:
        self.search = Search(weights, predicted)
        self.changed = self.hidden = False
        self._detector: Detector | None = None
        self._window: list[StepTimes] = []
        self._step_s = 0.0  # of the last window
        self._chosen_before: int | None = None  # to find it again was in vain
        self._threshold = THRESHOLD  # of an alarm, should it be

    @property
    def settled(self) -> bool:
        """Whether an arm was chosen, and none is tried."""
        return self.search.choice is not None

    @property
    def every(self) -> int:
        """After how many steps ranks are to compare times."""
        if not self.settled:
            return 1
        return window(self._step_s) if self._step_s else WINDOW

    @property
    def level_s(self) -> float:
        """What exchanges of the choice take, against which a change of the network is told; NaN before it stands."""
        return math.nan if self._detector is None else self._detector.level_s

    def resume(self, level_s: float) -> None:
        """An earlier job has chosen, and found that exchanges take this long."""
        self._detector = Detector(level_s, found=2)  # the first two windows are compared with that alone

    def keep(self, arm: int) -> None:
        """Stay with an arm that was chosen for other buckets of the same gradients; what it takes now is the level."""
        self.search.choice = arm

    @property
    def first(self) -> int:
        """The arm that is expected to be the best before any step."""
        return self.search.first

    def next(self) -> int:
        """Return the arm of the coming step."""
        return self.search.next()

    def not_hidden_s(self, arm: int) -> float:
        """Return what exchanges of an arm took from a step, of those that were tried; NaN where none was."""
        return self.search.not_hidden_s(arm) if self.search.taken[arm] else math.nan

    def record(self, steps: Sequence[tuple[int, StepTimes]]) -> None:
        """Take steps that ranks have agreed on: the arm of each, and what it took."""
        for arm, times in steps:
            if not self.settled:
                self._search(arm, times)
            elif arm == self.search.choice:
                self._window.append(times)
        if self.settled and len(self._window) >= self.every:
            exchanging_s = median_low([times.exchanging_s for times in self._window])
            self._step_s = median_low([times.whole_s for times in self._window])
            self._window = []
            if self._detector is None:  # nothing was tried
                self._detector = Detector(exchanging_s, self._threshold)
            else:
                self.changed = self._detector.add(exchanging_s) or self.changed

    def _search(self, arm: int, times: StepTimes) -> None:
        self.search.record(arm, times)
        first = self.search.taken[0]
        if arm == 0 and len(first) == 2 and self.search.choice is None:
            least = min(first, key=lambda each: each.whole_s)
            if least.waited_s <= MARGIN * least.whole_s:
                self.search.choice, self.hidden = 0, True  # nothing that sends less could save more
        if self.settled:
            self._begin_watching()

    def _begin_watching(self) -> None:
        choice = self.search.choice
        assert choice is not None
        self._window, taken = [], self.search.taken[choice]
        self._step_s = median_low([times.whole_s for times in taken[-WINDOW:]])
        exchanging_s = median_low([times.exchanging_s for times in taken])
        self._detector = Detector(exchanging_s, self._threshold if choice == self._chosen_before else THRESHOLD)

    def again(self, weights: Sequence[float], predicted: Sequence[float], same: int | None) -> None:
        """The network was measured again: search again. An alarm that finds the same arm doubles the threshold.

        Args:
            same: which of the arms is the one that was chosen before; None where it is not among them.
        """
        assert self._detector is not None
        self._chosen_before, self._threshold = same, 2 * self._detector.threshold
        self.search, self.changed, self.hidden = Search(weights, predicted), False, False
        self._window, self._step_s = [], 0.0
        if self.settled:
            self._detector = None
