"""What compressing and decompressing a bucket took, by compressor and path."""

from __future__ import annotations

import math
from bisect import bisect_left

from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path


class Kernels:
    """Notes measured seconds of one bucket, and says what is to be expected where nothing was measured yet.

    All that comes in is agreed over ranks, so that what comes out is the same.
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[str, str], dict[float, float]] = {}

    def note(self, compressor: Compressor, path: Path, seconds: float) -> None:
        """Take one measurement; the shortest counts, as nothing but noise makes one longer."""
        known, ratio = self._measured.setdefault(_key(compressor, path), {}), compressor.sent_ratio
        known[ratio] = min(seconds, known.get(ratio, math.inf))

    def seconds(self, compressor: Compressor, path: Path) -> float:
        """Return the seconds of a compressor on a path.

        Between two measured ratios time is linear in the ratio, outside it is that of the nearest. What was not tried
        is expected to take as long as the slowest that was; what loses nothing, no time.
        """
        if not compressor.compresses:
            return 0.0
        key, ratio = _key(compressor, path), compressor.sent_ratio
        if key in self._measured:
            return _between(self._measured[key], ratio)
        return max((_between(known, ratio) for known in self._measured.values()), default=0.0)


def _key(compressor: Compressor, path: Path) -> tuple[str, str]:
    """Ratios of one sparsifier are of one kind, and which calls carry a collective takes no kernel."""
    kind = type(compressor).__name__ if compressor.has_ratio else str(compressor)
    return kind, path.collective


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
