"""The ratio as a problem of three objectives: compression time, communication time, 1 / gain.

Eq. 6 of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning". All three are known for every ratio
of a grid, so the front is found by looking at all of them, exactly; NSGA-II, as in the paper, is there to compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.errors import ConfigError
from hvd_compress.extras import needed

RATIOS_A_FACTOR_OF_TWO = 6
"""How dense the grid of ratios is: neighbours are 12 % apart."""
LEAST_RATIO = 1e-9
"""No bucket has so many elements that a smaller one would be another number of them."""
PAPERS_FACTOR = 3
"""How far apart, about, the paper's candidates are: 0.1, 0.033, 0.011, 0.004, 0.001."""
LEAST_S = 0.0003
"""Times that differ by less than this, in seconds, are not told apart: two exchanges of the same bytes differ by so
much on two cores."""


@dataclass(frozen=True)
class Point:
    """One ratio with its objectives, all of which should be small.

    Attributes:
        ratio: k / numel.
        compress_s: seconds to compress and decompress.
        communicate_s: seconds of the fastest way to exchange.
        gain: share of ||corrected||^2 that is sent, in (0, 1] (Eq. 2).
    """

    ratio: float
    compress_s: float
    communicate_s: float
    gain: float

    @property
    def objectives(self) -> tuple[float, float, float]:
        """Compression time, communication time, 1 / gain: Eq. 6."""
        return self.compress_s, self.communicate_s, 1.0 / self.gain


def grid(low: float, high: float) -> tuple[float, ...]:
    """Return ratios from `low` to `high`, both included, each the same factor above the one before.

    Raises ConfigError unless LEAST_RATIO <= low <= high <= 1.
    """
    _check_bounds(low, high)
    return _spread(low, high, math.ceil(RATIOS_A_FACTOR_OF_TWO * math.log2(high / low)))


def coarse_grid(low: float, high: float) -> tuple[float, ...]:
    """Return few ratios from `low` to `high` for what costs training steps each: as the paper's, but at least three.

    Raises ConfigError unless LEAST_RATIO <= low <= high <= 1.
    """
    _check_bounds(low, high)
    return _spread(low, high, max(2, round(math.log(high / low, PAPERS_FACTOR))))


def pareto_front(options: Sequence[Point]) -> list[Point]:
    """Return the options that no other one beats: as good in all objectives, and better in one. In their order."""
    places = {option.objectives: None for option in options}  # what is in the same place beats nothing
    on_front = {place for place in places if not any(_beats(other, place) for other in places)}
    return [option for option in options if option.objectives in on_front]


def knee(options: Sequence[Point]) -> Point:
    """Return the option of the front that is nearest to the best of each objective; the smallest ratio among equals.

    1 / gain is scaled to 0 ... 1 over the front. So are the times, both by the wider of the two ranges, and by LEAST_S
    at least: a second is a second, and a time that hardly depends on the ratio must not have a say by its noise.
    """
    front = sorted(pareto_front(options), key=lambda option: option.ratio)
    columns = list(zip(*(option.objectives for option in front), strict=True))
    lows = [min(column) for column in columns]
    compress_s, communicate_s, inverse_gain = (max(column) - low for column, low in zip(columns, lows, strict=True))
    scales = (max(compress_s, communicate_s, LEAST_S),) * 2 + (inverse_gain or math.inf,)

    def distance(option: Point) -> float:
        return math.hypot(*((v - low) / scale for v, low, scale in zip(option.objectives, lows, scales, strict=True)))

    return min(front, key=distance)


def nsga2(options: Sequence[Point], generations: int = 60, seed: int = 0) -> list[Point]:
    """Return the front as pymoo's NSGA-II finds it (Deb et al. 2002), as the paper runs it, for comparison.

    The variable is the place on the grid, in [0, len(options) - 1]; objectives between two ratios are interpolated. The
    generator of random numbers is NSGA-II's own and seeded, so that all ranks find the same.

    Raises MissingPackageError where pymoo is not installed.
    """
    import numpy as np

    with needed("pymoo", "solver='nsga2'", otherwise="use solver='exact'"):
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.core.problem import Problem
        from pymoo.optimize import minimize
    table = np.array([option.objectives for option in options])
    places = np.arange(len(options))

    class Ratios(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(n_var=1, n_obj=3, xl=0.0, xu=float(len(options) - 1))

        def _evaluate(self, x, out, *_args, **_kwargs) -> None:  # type: ignore[no-untyped-def]
            out["F"] = np.stack([np.interp(x[:, 0], places, column) for column in table.T], axis=1)

    found = minimize(Ratios(), NSGA2(pop_size=40), ("n_gen", generations), seed=seed)
    nearest = sorted({round(float(x)) for x in np.atleast_2d(found.X)[:, 0]})
    return [options[place] for place in nearest]


def _check_bounds(low: float, high: float) -> None:
    if not LEAST_RATIO <= low <= high <= 1:
        raise ConfigError(
            f"the bounds of the ratio are {low} and {high}: {LEAST_RATIO:g} <= low <= high <= 1 must hold; one per "
            "cent is 0.01"
        )


def _spread(low: float, high: float, steps: int) -> tuple[float, ...]:
    return (*(low * (high / low) ** (i / steps) for i in range(steps)), high) if low < high else (low,)


def _beats(a: tuple[float, float, float], b: tuple[float, float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a[2] <= b[2] and a != b
