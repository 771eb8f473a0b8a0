"""What compressing and decompressing one bucket took, by scheme and ratio."""

from __future__ import annotations

import math
from bisect import bisect_left


class Kernels:
    """Notes measured seconds, and says what is to be expected where nothing was measured yet.

    All that comes in is agreed over ranks, so that what comes out is the same.
    """

    def __init__(self) -> None:
        self._measured: dict[str, dict[float, float]] = {}

    def note(self, scheme: str, ratio: float, seconds: float) -> None:
        """Take one measurement; the shortest counts, as nothing but noise makes one longer."""
        known = self._measured.setdefault(scheme, {})
        known[ratio] = min(seconds, known.get(ratio, math.inf))

    def seconds(self, scheme: str, ratio: float) -> float:
        """Return the seconds of a scheme at a ratio.

        Between two measured ratios time is linear in the ratio, outside it is that of the nearest. Of a sparse scheme
        that was not tried yet, the kernels are expected to take as long as those of the others.
        """
        if scheme in self._measured:
            return _between(self._measured[scheme], ratio)
        if scheme == "dense":
            return 0.0
        return max((_between(known, ratio) for known in self._measured.values()), default=0.0)


def _between(known: dict[float, float], ratio: float) -> float:
    ratios = sorted(known)
    right = bisect_left(ratios, ratio)
    if right == len(ratios):
        return known[ratios[-1]]
    if right == 0:
        return known[ratios[0]]
    low, high = ratios[right - 1], ratios[right]
    share = (ratio - low) / (high - low)
    return (1 - share) * known[low] + share * known[high]
