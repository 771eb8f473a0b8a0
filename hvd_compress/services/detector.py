"""Has the network changed? Cumulative sums of what steps take, and an alarm."""

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


class Alarm:
    """Watches what exchanges take as they travel now. An alarm makes the next one need twice as much.

    Attributes:
        rings: whether the network is another one, until it is answered.
    """

    def __init__(self) -> None:
        self.rings = False
        self._threshold = THRESHOLD
        self._detector: Detector | None = None

    @property
    def level_s(self) -> float:
        """What exchanges take, against which a change is noticed; NaN before it is known."""
        return math.nan if self._detector is None else self._detector.level_s

    @property
    def threshold(self) -> float:
        """Of the next alarm."""
        return self._threshold if self._detector is None else self._detector.threshold

    def expect(self, seconds: float, found: int = 1) -> None:
        """Exchanges take this long, as `found` windows say, from now on."""
        self._detector = Detector(seconds, self._threshold, found)

    def add(self, seconds: float) -> None:
        """Take a window's time; the first says what is expected."""
        if self._detector is None:
            self.expect(seconds)
        else:
            self.rings = self._detector.add(seconds) or self.rings

    def forget(self) -> None:
        """Exchanges travel in another way than before: what they take is not known, nor whether that is noisy."""
        self._threshold, self._detector = THRESHOLD, None

    def answer(self) -> None:
        """The network was found to be another one: a network that was measured in vain is noisy."""
        self.rings, self._threshold, self._detector = False, 2 * self.threshold, None
