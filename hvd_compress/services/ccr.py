"""The communication-to-computation ratio of a training: what of its exchanges a backward pass can hide."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from hvd_compress.services.base import Service

LONGEST_INTERVAL = 8
"""Steps of which one sends a gradient, where a ratio says how many: gradients become too old beyond, where something
that sends less in each step serves better."""


@dataclass(frozen=True)
class StepRecord:
    """What a rank has recorded of a step: seconds of its backward pass, and of the exchanges behind it."""

    backward_s: float
    exchange_s: float


@dataclass(frozen=True)
class Ccr:
    """What ranks have found in steps whose exchanges began when the backward pass was over. The same on all ranks.

    Sun et al., "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient Compression", Sections II.B
    and III.B.

    Attributes:
        communicate_s: seconds of a step's exchanges, from when the last rank came to them until all had ended: who
            waits for a rank that is late does not communicate. Median of the steps.
        backward_s: seconds of the backward pass on the slowest rank, as no exchange begins before it has its gradient.
        naive_s: what exchanges took on a rank by its own clock, its waits among them: mean over ranks and steps.
        naive_backward_s: seconds of the backward pass, mean over ranks.
        steps: how many were profiled.
        lost_s: seconds that the profile has cost at most: what its steps could have hidden. Beside it ranks exchange
            some figures, once.
        ranks: how many.
    """

    communicate_s: float
    backward_s: float
    naive_s: float
    naive_backward_s: float
    steps: int
    lost_s: float
    ranks: int

    @property
    def ratio(self) -> float:
        """Exchanges over backward pass; infinite where there was none."""
        return self.communicate_s / self.backward_s if self.backward_s else math.inf

    @property
    def naive(self) -> float:
        """What a profiler says that neither aligns ranks nor knows the slowest of them."""
        return self.naive_s / self.naive_backward_s if self.naive_backward_s else math.inf

    def __str__(self) -> str:
        return (
            f"CCR {self.ratio:.3g}: {1e3 * self.communicate_s:.3g} ms of exchanges beside a backward pass of "
            f"{1e3 * self.backward_s:.3g} ms"
        )


def ccr_of(ranks: Sequence[Sequence[StepRecord]]) -> Ccr:
    """Return the ratio, by what each rank has recorded of the same steps.

    No rank is through with its exchanges before all have come to them, and all are through at about the same time: so
    the one that came last has waited for nobody, and what they took there is what they take.
    """
    communicated = [min(record.exchange_s for record in step) for step in zip(*ranks, strict=True)]
    backward = [median(record.backward_s for record in steps) for steps in ranks]
    own = [fmean(record.exchange_s for record in steps) for steps in ranks]
    lost_s = sum(min(taken_s, max(backward)) for taken_s in communicated)
    return Ccr(median(communicated), max(backward), fmean(own), fmean(backward), len(communicated), lost_s, len(ranks))


def interval_of(ccr: float) -> int:
    """Return ceil(CCR), LONGEST_INTERVAL at most; 1 where no backward pass was seen, which can hide nothing."""
    return max(1, math.ceil(min(ccr, LONGEST_INTERVAL))) if math.isfinite(ccr) else 1


class WantsCcr(Service, ABC):
    """Wants a ratio of the coming steps, as a policy does. The same on all ranks.

    Attributes:
        obstacle: why there can be none, in words; the session says so before the policy is prepared.
        wanted: whether the coming steps are to be profiled.
    """

    obstacle = ""

    @property
    @abstractmethod
    def wanted(self) -> bool: ...

    @abstractmethod
    def take(self, step: int, ccr: Ccr) -> None:
        """Take the ratio that was profiled, after step `step`."""
