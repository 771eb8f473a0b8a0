"""How much of the residual comes back with the next gradient, from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.checks import check_number, check_whole


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
        check_number("initial", self.initial, 0, 1)
        check_number("growth", self.growth, 0)
        check_whole("every", self.every, 1, of="steps")

    @property
    def keeps_all(self) -> bool:
        """Whether the coefficient is 1 in every step."""
        return self.initial == 1

    def coefficient(self, step: int) -> float:
        """Return the coefficient of a step, counted from 0."""
        return min(1.0, self.initial + self.growth * (step // self.every))


ALL_BACK = FeedbackSchedule()
"""The whole residual comes back in every step."""
