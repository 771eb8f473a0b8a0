"""Which arm, step by step: a search, then an alarm, and a search again where the network has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from hvd_compress.policies.auto.search import MARGIN, Search
from hvd_compress.services.agreement import WINDOW, StepTimes, window
from hvd_compress.services.detector import Alarm


class Chooser:
    """Chooses an arm for each step, from times that are told late. The same on all ranks, as times are.

    Attributes:
        alarm: learns what exchanges of the choice are expected to take.
        hidden: whether the first arm was chosen as its exchanges are hidden but for less than `MARGIN` of a step.
    """

    def __init__(self, weights: Sequence[float], predicted: Sequence[float], alarm: Alarm) -> None:
        self.search, self.alarm = Search(weights, predicted), alarm
        self.hidden = False
        self._window: list[StepTimes] = []
        self._step_s = 0.0  # of the last window
        self._chosen_before: int | None = None  # to find it again was in vain

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

    def record(self, steps: Sequence[tuple[int, StepTimes]]) -> float | None:
        """Take steps that ranks have agreed on: the arm of each, and what it took.

        Return what exchanges of the choice took, the median of a window, where one is full.
        """
        for arm, times in steps:
            if not self.settled:
                self._search(arm, times)
            elif arm == self.search.choice:
                self._window.append(times)
        if not self.settled or len(self._window) < self.every:
            return None
        exchanging_s = median_low([times.exchanging_s for times in self._window])
        self._step_s = median_low([times.whole_s for times in self._window])
        self._window = []
        return exchanging_s

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
        if choice != self._chosen_before:
            self.alarm.forget()
        self.alarm.expect(median_low([times.exchanging_s for times in taken]))

    def again(self, weights: Sequence[float], predicted: Sequence[float], same: int | None) -> None:
        """The network was measured again: search again. Where that finds another arm, the alarm is as in the beginning.

        Args:
            same: which of the arms is the one that was chosen before; None where it is not among them.
        """
        self._chosen_before, self.search, self.hidden = same, Search(weights, predicted), False
        self._window, self._step_s = [], 0.0
