"""What local steps take to a loss, by the number of them between two exchanges."""

from __future__ import annotations

import math
from dataclasses import dataclass

COUNTS = (1, 2, 4, 8, 16, 32)
"""Steps between two exchanges that are compared; 1 is synchronous training."""


@dataclass(frozen=True)
class LocalStepsCost:
    """Predicts the time to a loss from what steps and exchanges take.

    Attributes:
        step_s: seconds of a step of the slowest rank, without exchanges.
        exchange_s: of the exchange of the whole model, on the slowest rank.
        cosine: between what two ranks move in one step, -1 to 1; below 0 counts as 0.
        ranks: how many there are.
        fragments: in which the model is exchanged.
        delay: steps during which an exchange may run; fewer if the next one begins sooner.
    """

    step_s: float
    exchange_s: float
    cosine: float
    ranks: int
    fragments: int = 1
    delay: int = 0

    def seconds(self, every: int) -> float:
        """Return the mean seconds of a step, this many between exchanges, without what a delay hides."""
        if every == 1:  # of gradients, in which nothing is hidden
            return self.step_s + self.exchange_s
        hidden = min(self.delay, every // self.fragments)
        waits = max(self.exchange_s / self.fragments - hidden * self.step_s, 0.0)
        return self.step_s + self.fragments * waits / every

    def steps(self, every: int) -> float:
        """Return the steps that come as far as one step of synchronous training.

        Each rank learns from its own gradients alone until the next exchange. Of vectors with a mean cosine c between
        them, the mean of n has sqrt((1 + (n - 1) c) / n) of their norm: what an optimizer that normalises its steps,
        as AdamW, moves in the direction that all share is less by this factor on each rank by itself than by the mean
        gradient, however seldom ranks exchange. That trainings come to this as 1 - 1 / sqrt(every) is no law: of the
        steps measured (benchmarks/results/time-to-accuracy.md: 4 ranks, a cosine of 0.05, int4, no delay) it gives
        between 5 % fewer and 16 % more.
        """
        alone = math.sqrt(self.ranks / (1 + (self.ranks - 1) * max(self.cosine, 0.0)))
        return 1 + (alone - 1) * (1 - 1 / math.sqrt(every))

    def cost(self, every: int) -> float:
        """Return the seconds that it takes to come as far as by one step of synchronous training."""
        return self.seconds(every) * self.steps(every)

    def best(self) -> int:
        """Return the number among COUNTS that costs least."""
        return min(COUNTS, key=self.cost)
