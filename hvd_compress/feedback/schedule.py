"""How much of the residual comes back with the next gradient, from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvd_compress.errors import ConfigError


@dataclass(frozen=True)
class FeedbackSchedule:
    """The compensation coefficient of error feedback, which grows with the steps (Sun et al., COVAP, Section III.D).

    corrected = gradient + coefficient * residual, and residual = corrected - transmitted as ever, so (1 - coefficient)
    of the residual is forgotten. It depends on the step counter alone, which is the same on all ranks and in a
    checkpoint. The default keeps everything.

    Attributes:
        initial: the coefficient of the first steps, in [0, 1].
        growth: what it grows by each time, 0 or more, until it is 1.
        every: the number of steps between two growths, 1 or more.

    Raises ConfigError for other values.
    """

    initial: float = 1.0
    growth: float = 0.1
    every: int = 50

    def __post_init__(self) -> None:
        if not _is_number(self.initial) or not 0 <= self.initial <= 1:
            raise ConfigError(f"initial = {self.initial!r} is not a number in [0, 1]")
        if not _is_number(self.growth) or self.growth < 0:
            raise ConfigError(f"growth = {self.growth!r} is not a number, 0 or more")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"every = {self.every!r} is not a whole number of steps, 1 or more")

    @property
    def keeps_all(self) -> bool:
        """Whether the coefficient is 1 in every step."""
        return self.initial == 1

    def coefficient(self, step: int) -> float:
        """Return the coefficient of a step, counted from 0."""
        return min(1.0, self.initial + self.growth * (step // self.every))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


ALL_BACK = FeedbackSchedule()
"""The whole residual comes back in every step."""
