"""Distributions of magnitudes, fitted by moments: beyond which one does a given share of the elements lie?"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from hvd_compress import native

BISECTIONS = 60
"""In search of a quantile: the last bit of fp64 has long been reached."""
ALMOST_ZERO = 1e-9
"""A shape nearer to zero is taken for the limit."""
SHIFT = 15
"""Bits of an fp32 magnitude that its bin leaves out: 256 bins to each factor of two (csrc/.../curve.hpp)."""
BINS = 0x7F800000 >> SHIFT
"""Of finite magnitudes."""


@dataclass(frozen=True)
class Moments:
    """Of the distances of magnitudes from a threshold.

    Attributes:
        count: how many magnitudes lie beyond it.
        mean, square, log: of the distances, their squares, and their natural logarithms; 0 where there are none.
    """

    count: float
    mean: float
    square: float
    log: float


@dataclass(frozen=True)
class Magnitudes:
    """How many magnitudes lie in each bin, 1/256 of a factor of two wide; the least bin, of zeros, is left out.

    One pass over memory; of more than 2^20 elements a sample, but for the largest (native.gain_curve). All moments
    follow from it, within about 0.2 %, and with the same bits on every device and with any number of threads.

    Attributes:
        low, high: (m,) fp64, ascending: where bins begin and end.
        counts: (m,) fp64, above 0.
        finite: whether all elements are.
    """

    low: torch.Tensor
    high: torch.Tensor
    counts: torch.Tensor
    finite: bool

    @classmethod
    def of(cls, x: torch.Tensor) -> Magnitudes:
        """Count those of x (n,). On a GPU the host waits."""
        curve = native.gain_curve(x)
        finite = not bool(curve.shares.isnan().any())
        counts = curve.counts.diff().cpu().flip(0)[1:BINS].double()
        filled = counts.nonzero().reshape(-1)
        edges = _edges()
        return cls(edges[filled], edges[filled + 1], counts[filled], finite)

    def beyond(self, threshold: float) -> Moments:
        """Return the moments of what lies beyond a threshold; within a bin magnitudes are spread evenly."""
        first = int(torch.searchsorted(self.high, threshold, right=True))
        high, begin = self.high[first:], self.low[first:].clamp(min=threshold)
        counts = self.counts[first:] * ((high - begin) / (high - self.low[first:]))
        if counts.numel() == 0:
            return Moments(0.0, 0.0, 0.0, 0.0)
        distance = (begin + high) / 2 - threshold
        sums = [counts, counts * distance, counts * distance.square(), counts * distance.log()]
        count, *others = _folded(torch.stack(sums, dim=1)).tolist()
        return Moments(count, *(value / count for value in others))


@functools.cache
def _edges() -> torch.Tensor:
    """Return where the bins of finite magnitudes begin, but for the first, and where the last ends, (BINS,) fp64."""
    bits = torch.arange(1, BINS, dtype=torch.int32, device="cpu") << SHIFT
    end = torch.tensor([2.0**128], dtype=torch.float64, device="cpu")
    return torch.cat([bits.view(torch.float32).double(), end])


def _folded(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension; `rows` is changed. The second half is added to the first, and again."""
    while rows.shape[0] > 1:
        half = -(-rows.shape[0] // 2)
        rows[: rows.shape[0] - half] += rows[half:]
        rows = rows[:half]
    return rows[0]


def exponential(of: Moments, share: float) -> float:
    """Return the magnitude beyond which that share lies, if the distances are distributed exponentially.

    The most likely scale is the mean: threshold = -mean * ln(share).
    """
    return -of.mean * math.log(share)


def gamma(of: Moments, share: float) -> float:
    """Return the same of a gamma distribution.

    With s = ln(mean) - mean of logarithms, the shape is about (3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s) (Minka 2002)
    and the scale mean / shape. The quantile is found by bisection: the closed form of SIDCo holds for shapes around 1.
    """
    if share >= 1:
        return 0.0
    s = max(math.log(of.mean) - of.log, ALMOST_ZERO)
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    low, high = 0.0, 1.0
    while _beyond(shape, high) > share:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(shape, middle) > share else (low, middle)
    return high * of.mean / shape


def _beyond(shape: float, x: float) -> float:
    """Return the share of a gamma distribution of scale 1 that lies beyond x."""
    at = [torch.tensor(value, dtype=torch.float64, device="cpu") for value in (shape, x)]
    return float(torch.special.gammaincc(*at))


def pareto(of: Moments, share: float) -> float:
    """Return the same of a generalised Pareto distribution.

    With q = mean^2 / variance, the shape is (1 - q) / 2 and the scale mean * (1 + q) / 2 (Hosking and Wallis 1987).
    """
    variance = of.square - of.mean**2
    if variance <= ALMOST_ZERO * of.square:  # all distances are the same
        return of.mean
    q = of.mean**2 / variance
    shape, scale = (1 - q) / 2, of.mean * (1 + q) / 2
    if abs(shape) < ALMOST_ZERO:
        return -scale * math.log(share)
    return scale * math.expm1(-shape * math.log(share)) / shape
