"""Has the network changed? Cumulative sums of what steps take."""

from __future__ import annotations

import math
from statistics import median

REFERENCE = 5
"""Times, of the search and of the first windows, whose median the next ones are compared with."""
SLACK = 0.1
"""Of a change in logarithms that counts for nothing: ten per cent."""
MOST = 0.5
"""That one window counts for, in logarithms: whatever disturbs one alone is no change."""
THRESHOLD = 0.7
"""Two windows in which steps take twice the time, or half."""
QUIET = 100
"""Windows without an alarm after which half of a higher threshold will do."""


class Detector:
    """Page's two-sided CUSUM (1954) on the logarithm of times, relative to those in the beginning.

    Attributes:
        threshold: of an alarm.
    """

    def __init__(self, seconds: float, threshold: float = THRESHOLD, found: int = 1) -> None:
        """`seconds`: what `found` windows took before; where those are few, the next ones count, too."""
        self.threshold = threshold
        self._first = [seconds] * found
        self._longer = self._shorter = 0.0
        self._windows = 0

    @property
    def level_s(self) -> float:
        return median(self._first)

    def add(self, seconds: float) -> bool:
        """Take a window's time; return whether it is another network."""
        change = math.log(seconds / self.level_s)
        if len(self._first) < REFERENCE:
            self._first.append(seconds)
        change = max(-MOST, min(MOST, change))
        self._longer = max(0.0, self._longer + change - SLACK)
        self._shorter = max(0.0, self._shorter - change - SLACK)
        self._windows += 1
        if self._windows % QUIET == 0:
            self.threshold = max(THRESHOLD, self.threshold / 2)
        return max(self._longer, self._shorter) > self.threshold
