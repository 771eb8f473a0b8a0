"""What is asked of a ratio that is chosen while training: `Compression.flexible(...)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version

from hvd_compress.checks import check_choice, check_number
from hvd_compress.extras import require
from hvd_compress.papers.flexible.tradeoff import coarse_grid, grid

GAINS = ("curve", "rollout")
SOLVERS = ("exact", "nsga2")
LOW, HIGH = 0.001, 0.1
"""c_low and c_high of the paper."""
GAIN_CHANGE = 0.1
"""The paper's gain threshold."""


@dataclass(frozen=True)
class RatioSettings:
    """How the ratio of each bucket is chosen. The same on all ranks.

    Attributes:
        low, high: bounds of the ratio.
        gain_change: the relative change of the gain at which the ratio is chosen anew.
        gain: "curve" (read from the gradient, for all ratios at once) or "rollout" (by training with each for some
            steps, as the paper does).
        solver: "exact" (all ratios of the grid are compared) or "nsga2" (as the paper does).
        versions: of what searches: each rank does it by itself, and all must find the same.

    Raises ConfigError for a value that has no meaning.
    """

    low: float = LOW
    high: float = HIGH
    gain_change: float = GAIN_CHANGE
    gain: str = "curve"
    solver: str = "exact"
    versions: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        check_number("low", self.low, 0)
        check_number("high", self.high, 0)
        check_number("gain_change", self.gain_change, 0, above=True, hint="0.1 is ten per cent")
        grid(self.low, self.high)  # says what is wrong with the bounds
        check_choice("gain", self.gain, GAINS)
        check_choice("solver", self.solver, SOLVERS)
        if self.solver == "nsga2":
            require("pymoo", "solver='nsga2'", otherwise="use solver='exact'")
            found = tuple(f"{name} {version(name)}" for name in ("pymoo", "numpy"))
            object.__setattr__(self, "versions", found)

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """The candidates, from `low` to `high`: few where each costs training steps."""
        return grid(self.low, self.high) if self.gain == "curve" else coarse_grid(self.low, self.high)

    @property
    def start(self) -> float:
        """The ratio as long as nothing is known: the candidate in the middle."""
        return self.ratios[len(self.ratios) // 2]
