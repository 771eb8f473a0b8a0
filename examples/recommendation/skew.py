"""How often the rows of a table are used: distributions over their popularity, 0 the most popular.

Each draws by inverse transform, one uniform number a draw, in a time that does not depend on the table's rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hvd_compress.errors import ConfigError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

EXACT_RANKS = 65_536
"""Of Zipf's distribution, whose probabilities are summed one by one. Behind them an integral replaces the sum: its
relative error is alpha (alpha + 1) / (24 rank^2), below 1e-9 for alpha up to 5."""


class Skew(Protocol):
    """A distribution over the rows of a table."""

    def draw(self, uniform: Floats, rows: int, pool_key: int = 0) -> Integers:
        """Return popularity ranks in [0, rows), int64, for numbers from [0, 1), of the same shape.

        Args:
            pool_key: of a table and a batch, equal on all ranks, for distributions that change with the batch.
        """


class Zipf:
    """Rank i, from 1, has a probability in proportion to i^-alpha; alpha = 0 is uniform (Bagpipe, 5.4.3)."""

    def __init__(self, alpha: float) -> None:
        """Raises ConfigError for an alpha below 0."""
        if not alpha >= 0:
            raise ConfigError(f"alpha = {alpha} of Zipf's distribution must be 0 or more")
        self.alpha = alpha

    def draw(self, uniform: Floats, rows: int, pool_key: int = 0) -> Integers:
        if self.alpha == 0:
            return _below((uniform * rows).astype(np.int64), rows)
        cumulative = _zipf_sums(self.alpha, min(rows, EXACT_RANKS))
        exact = cumulative[-1]
        start = EXACT_RANKS + 0.5
        tail = _integral(self.alpha, start, rows + 0.5) if rows > EXACT_RANKS else 0.0
        mass = uniform * (exact + tail)
        ranks = np.searchsorted(cumulative, mass, side="right")
        behind = mass >= exact
        if rows > EXACT_RANKS and behind.any():
            ends = _inverse_integral(self.alpha, start, np.minimum(mass[behind] - exact, tail))
            ranks[behind] = np.rint(ends) - 1
        return _below(ranks.astype(np.int64), rows)


class Top:
    """The most popular `fraction` of the rows takes the `share` of all draws, with exponentially falling probabilities;
    the others are uniform (Bagpipe, 5.4.3).

    The paper does not tell how fast the exponential function falls: here by a factor of e^decay from the first row of
    the head to its last.
    """

    def __init__(self, share: float, fraction: float = 0.01, decay: float = 5.0) -> None:
        """Raises ConfigError for a share or a fraction outside [0, 1], or a decay that is not positive."""
        if not (0 <= share <= 1 and 0 <= fraction <= 1 and decay > 0):
            raise ConfigError(f"share {share}, fraction {fraction}, decay {decay}: the first two are within [0, 1]")
        self.share, self.fraction, self.decay = share, fraction, decay

    def draw(self, uniform: Floats, rows: int, pool_key: int = 0) -> Integers:
        head = round(rows * self.fraction)
        if head == 0:  # the table is too small to have one
            return Zipf(0).draw(uniform, rows)
        within = np.minimum(uniform / self.share, 1.0) if self.share else np.ones_like(uniform)
        ranks = -np.log1p(-within * -np.expm1(-self.decay)) * (head / self.decay)
        return _with_tail(_below(ranks.astype(np.int64), head), uniform, head, self.share, rows)


class Head:
    """The `rows` most popular rows take the `share` of all draws, by Zipf's distribution; the others are uniform."""

    def __init__(self, rows: int, share: float, alpha: float) -> None:
        """Raises ConfigError for no rows, a share outside (0, 1], or an alpha below 0."""
        if rows < 1 or not 0 < share <= 1:
            raise ConfigError(
                f"a head of {rows} rows with the share {share} needs 1 row or more, and a share in (0, 1]"
            )
        self.rows, self.share, self.zipf = rows, share, Zipf(alpha)

    def draw(self, uniform: Floats, rows: int, pool_key: int = 0) -> Integers:
        if rows <= self.rows:
            return self.zipf.draw(uniform, rows)
        ranks = self.zipf.draw(np.minimum(uniform / self.share, 1.0), self.rows)
        return _with_tail(ranks, uniform, self.rows, self.share, rows)


def _with_tail(ranks: Integers, uniform: Floats, head: int, share: float, rows: int) -> Integers:
    """Return `ranks` where a number is below `share`, and else a rank from [head, rows)."""
    tail = head + ((uniform - share) / (1 - share) * (rows - head) if share < 1 else np.zeros_like(uniform))
    return np.where(uniform < share, ranks, _below(tail.astype(np.int64), rows))


def _below(ranks: Integers, rows: int) -> Integers:
    """Rounding may reach the end of an interval that is open there."""
    return np.asarray(np.minimum(ranks, rows - 1))


@lru_cache(maxsize=64)
def _zipf_sums(alpha: float, ranks: int) -> Floats:
    sums: Floats = np.cumsum(np.arange(1, ranks + 1, dtype=np.float64) ** -alpha)
    return sums


def _integral(alpha: float, start: float, end: float) -> float:
    """Return the integral of x^-alpha, which approximates a sum over whole numbers from half to half."""
    if alpha == 1:
        return float(np.log(end / start))
    return float((end ** (1 - alpha) - start ** (1 - alpha)) / (1 - alpha))


def _inverse_integral(alpha: float, start: float, mass: Floats) -> Floats:
    """Return the end of an integral that has this mass."""
    if alpha == 1:
        return np.asarray(start * np.exp(mass))
    return np.asarray((start ** (1 - alpha) + (1 - alpha) * mass) ** (1 / (1 - alpha)))
