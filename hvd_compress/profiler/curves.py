"""What profiles make of measurements: curves over many sizes, and the alpha and beta nearest to them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import VERBS, Terms


class LogCurve(Curve):
    """Seconds by bytes, or elements, whose logarithms are linear between two sizes.

    Below the first time stays as it is there: latency. Beyond the last it grows linearly in bytes, as it did between
    the last two.
    """

    def seconds(self, size: float) -> float:
        """Return the time of `size` bytes."""
        sizes, times = self.sizes, self.times
        if size <= sizes[0]:
            return times[0]
        if size > sizes[-1]:
            return times[-1] + self._slope() * (size - sizes[-1])
        right = bisect_left(sizes, size)
        left = right - 1
        share = math.log(size / sizes[left]) / math.log(sizes[right] / sizes[left])
        return math.exp((1 - share) * math.log(times[left]) + share * math.log(times[right]))

    def _slope(self) -> float:
        """Return the seconds a byte beyond the last size; of the whole curve, where the last times were pooled."""
        if len(self.sizes) == 1:
            return 0.0
        last = (self.times[-1] - self.times[-2]) / (self.sizes[-1] - self.sizes[-2])
        return last or (self.times[-1] - self.times[0]) / (self.sizes[-1] - self.sizes[0])


def fit(curves: Curves, forced: bool = True) -> tuple[float, float]:
    """Return (alpha, beta), in seconds and seconds per byte, that bring the formulas nearest to curves.

    Least squares of the relative error over all points, neither negative. (0, 0) where there are none, or one rank.

    Args:
        forced: take points of forced algorithms alone: the formulas know what those do.
    """
    points = [
        (VERBS[verb](size, curves.world_size, algorithm), seconds)
        for (verb, algorithm), curve in curves.by_key.items()
        if algorithm != "auto" or not forced
        for size, seconds in zip(curve.sizes, curve.times, strict=True)
    ]
    return fit_terms(points) if points and curves.world_size > 1 else (0.0, 0.0)


def fit_terms(points: Sequence[tuple[Terms, float]]) -> tuple[float, float]:
    """Return (alpha, beta) >= 0 that minimise the sum of (predicted / measured - 1)^2 over (terms, seconds)."""
    scaled = np.array([(terms.steps / seconds, terms.bytes / seconds) for terms, seconds in points])
    ones = np.ones(len(points))
    scale = scaled.max(axis=0)
    scale[scale == 0] = 1.0
    alpha, beta = np.linalg.lstsq(scaled / scale, ones, rcond=None)[0] / scale
    if alpha < 0 or beta < 0:  # the best with two bounds lies on one of them
        only = 0 if beta < 0 else 1
        column = scaled[:, only]
        best = float(column @ ones / max(column @ column, 1e-300))
        alpha, beta = (best, 0.0) if only == 0 else (0.0, best)
    return float(alpha), float(beta)
