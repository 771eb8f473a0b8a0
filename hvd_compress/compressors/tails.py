"""Distributions of magnitudes, fitted by moments: beyond which one does a given share of the elements lie?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

CHUNK = 1 << 18
"""Elements that are summed at once: they stay in a core's cache."""
BISECTIONS = 60
"""In search of a quantile: the last bit of fp64 has long been reached."""
ALMOST_ZERO = 1e-9
"""A shape nearer to zero is taken for the limit."""


@dataclass(frozen=True)
class Moments:
    """Of the distances of magnitudes from a threshold.

    Attributes:
        count: of the elements.
        mean, square, log: of the distances, their squares, and their natural logarithms; 0 without elements.
    """

    count: int
    mean: float
    square: float
    log: float


def moments(x: torch.Tensor, above: float = 0.0, *, logs: bool = False) -> Moments:
    """Return the moments of |x| - above in fp64, added in an order that depends on the number of elements alone.

    Args:
        x: (n,), no magnitude below `above`. Without a threshold, elements that are 0 do not count.
        above: a number of fp32, 0 or more.
        logs: whether that of the logarithms is wanted; else it is 0. Its last bits may depend on the device.
    """
    if x.numel() == 0:
        return Moments(0, 0.0, 0.0, 0.0)
    rows = [_sums(chunk, above, logs) for chunk in torch.split(x, CHUNK)]
    count, total, squares, log = _folded(torch.stack(rows)).tolist()
    count = x.numel() if above > 0 else int(count)
    return Moments(count, *(value / max(1, count) for value in (total, squares, log)))


def _sums(chunk: torch.Tensor, above: float, logs: bool) -> torch.Tensor:
    """Return how many distances are not 0, and the sums of distances, squares and logarithms, (4,) fp64."""
    distance = chunk.abs().double().sub_(above)
    positive = distance > 0
    log = torch.where(positive, distance, 1.0).log_() if logs else distance.new_zeros(1)
    squares = distance.square()
    return torch.stack([positive.sum().double(), _folded(distance), _folded(squares), _folded(log)])


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
