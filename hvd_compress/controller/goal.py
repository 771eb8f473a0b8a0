"""What is asked of a ratio that is chosen while training: `Compression.flexible(...)` in a record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from hvd_compress.controller.tradeoff import coarse_grid, grid
from hvd_compress.errors import ConfigError, did_you_mean, known_are
from hvd_compress.extras import require

TARGETS = ("knee", "pace")
GAINS = ("curve", "rollout")
SOLVERS = ("exact", "nsga2")

LOW, HIGH = 0.02, 0.1
"""Bounds of the ratio unless others are asked for. Below, accuracy is lost: at 0.001 up to 4 points in the paper (Table
III), and 2.5 in our example, where 0.01 still costs 0.9. The knee depends on them, as it lies between them.
"""
LOW_FOR_A_GAIN = 0.001
"""Where a gain is wanted, that gain is the bound."""

Target = str | float | tuple[float, float, float]


@dataclass(frozen=True)
class AutoRatio:
    """How the ratio of each bucket is chosen. The same on all ranks.

    Attributes:
        target: "knee" (of the Pareto front of Eq. 6), "pace" (the most gain a second of training), a share of
            ||corrected||^2 in (0, 1] that is to be sent with as small a ratio as does it, or three weights of
            compression time, communication time and 1 / gain.
        low, high: bounds of the ratio, c_low and c_high of the paper, which has 0.001 and 0.1.
        gain_change: the relative change of the gain at which the ratio is chosen anew.
        gain: "curve" (read from the gradient, for all ratios at once) or "rollout" (by training with each for some
            steps, as the paper does).
        solver: "exact" (all ratios of the grid are compared) or "nsga2" (as the paper does).

    Raises ConfigError for a value that has no meaning.
    """

    target: Target = "knee"
    low: float = LOW
    high: float = HIGH
    gain_change: float = 0.1
    gain: str = "curve"
    solver: str = "exact"

    def __post_init__(self) -> None:
        for name in ("low", "high", "gain_change"):
            if not _is_number(getattr(self, name)):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be a number")
        grid(self.low, self.high)  # says what is wrong with the bounds
        if not 0 < self.gain_change < math.inf:
            raise ConfigError(f"gain_change = {self.gain_change} must be above 0: 0.1 is ten per cent")
        if isinstance(self.target, list):
            object.__setattr__(self, "target", tuple(self.target))
        self._check_target()
        if self.gain not in GAINS:
            raise ConfigError(f"unknown gain {self.gain!r}{known_are(GAINS, self.gain)}")
        if self.solver not in SOLVERS:
            raise ConfigError(f"unknown solver {self.solver!r}{known_are(SOLVERS, self.solver)}")
        if self.solver == "nsga2":
            require("pymoo", "solver='nsga2'", otherwise="use solver='exact'")

    def _check_target(self) -> None:
        target = self.target
        if isinstance(target, tuple):
            numbers = len(target) == 3 and all(_is_number(weight) for weight in target)
            if not numbers or not all(0 <= weight < math.inf for weight in target) or not any(target):
                raise ConfigError(
                    f"target = {target} must be three weights (compression time, communication time, 1 / gain), none "
                    "negative and one above zero"
                )
        elif _is_number(target):
            if not 0 < float(target) <= 1:
                raise ConfigError(f"target = {target} lies outside (0, 1]: it is the share of ||corrected||^2 to send")
        elif not isinstance(target, str) or target not in TARGETS:
            raise ConfigError(
                f"unknown target {target!r}; it is 'knee', 'pace', a gain in (0, 1], or three weights"
                + did_you_mean(target, TARGETS)
            )

    @property
    def wanted_gain(self) -> float | None:
        """The gain that was asked for; None where times have a say, too."""
        return float(self.target) if _is_number(self.target) else None  # type: ignore[arg-type]

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of compression time, communication time and 1 / gain."""
        return self.target if isinstance(self.target, tuple) else (1.0, 1.0, 1.0)

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """The candidates, from `low` to `high`: few where each costs training steps."""
        return grid(self.low, self.high) if self.gain == "curve" else coarse_grid(self.low, self.high)

    @property
    def start(self) -> float:
        """Return the ratio as long as nothing is known: the candidate in the middle."""
        return self.ratios[len(self.ratios) // 2]


def default_low(target: Target, high: float) -> float:
    """Return the lower bound where none is asked for; an upper one that is below it is both."""
    low = LOW_FOR_A_GAIN if _is_number(target) else LOW
    return min(low, high) if _is_number(high) else low


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
