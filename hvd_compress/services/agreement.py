"""Ranks compare what they measured of steps: behind the exchanges of one step, taken after the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.services.base import BucketMetrics, StepMoments

WINDOW, WINDOW_S, LONGEST = 4, 0.5, 32
"""Steps after which ranks compare times again, at least how many seconds they take where they are short, as to compare
them takes some milliseconds where ranks share cores, and how many steps that is at most."""
OF_STEP = 4
"""Figures of a step."""


def window(step_s: float) -> int:
    """Return after how many steps of `step_s` seconds ranks are to compare times again."""
    return max(WINDOW, min(LONGEST, math.ceil(WINDOW_S / max(step_s, 1e-4))))


@dataclass(frozen=True)
class StepTimes:
    """What ranks agree on of a step.

    Attributes:
        whole_s: from the end of the step before to its end, the mean over ranks: who waits for whom cancels out.
        exchanging_s: from the first gradient to the end, on the rank that came last, which waited for nobody.
        waited_s: of that, what no backward pass has hidden.
        summed_s: what exchanges took, with their kernels, hidden or not, summed over buckets, on the rank where that
            was the least: who comes late waits for nobody.
    """

    whole_s: float
    exchanging_s: float
    waited_s: float
    summed_s: float = 0.0

    @property
    def before_s(self) -> float:
        """What passed until exchanges were waited for: the forward and the backward pass, and what is beside them."""
        return self.whole_s - self.waited_s


@dataclass(frozen=True)
class Agreed:
    """What all ranks know of the steps that were compared.

    Attributes:
        steps: their times.
        told: by rank, what the policy had to tell.
    """

    steps: tuple[StepTimes, ...]
    told: tuple[tuple[float, ...], ...]


class Agreement:
    """Times of steps that ranks compare: one small all-gather, launched where ranks are in step, awaited a step later.

    Called alike on all ranks. A `Watch` records each step when it is over, begins after the exchanges of one, and takes
    what ranks agree on after the next, or waits for it where a policy can decide nothing without.

    Attributes:
        recorded: steps that are to be compared.
    """

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._wait: Callable[[], list[list[float]]] | None = None
        self._asked = 0  # steps that are being compared
        self._since = 0  # the step behind whose exchanges they are

    @property
    def recorded(self) -> int:
        return len(self._rows)

    @property
    def under_way(self) -> bool:
        """Whether ranks are comparing."""
        return self._wait is not None

    def record(self, moments: StepMoments, metrics: Sequence[BucketMetrics]) -> None:
        """Take a step of this rank, with what it measured of all buckets."""
        summed_s = sum(map(_whole_s, metrics))
        self._rows.append([moments.ended_s - moments.before_s, moments.exchanging_s, moments.waited_s, summed_s])

    def begin(self, launch: Launch, step: int, told: Sequence[float] = ()) -> None:
        """Compare the steps that were recorded, behind the exchanges of this one, and tell the other ranks something.

        Args:
            told: as many figures on all ranks.
        """
        assert self._wait is None
        mine = [figure for row in self._rows for figure in row] + list(told)
        self._wait = launch(partial(gathered, mine), f"step {step}, comparing times")
        self._asked, self._since, self._rows = len(self._rows), step, []

    def ready(self, step: int) -> bool:
        """Whether what ranks compared has had the exchanges of a later step to travel beside."""
        return self.under_way and step > self._since

    def take(self) -> Agreed:
        """Return what ranks agree on; waits for it."""
        assert self._wait is not None
        steps, ranks = self._asked, self._wait()
        self._wait = None
        rows = [[rank[OF_STEP * at : OF_STEP * (at + 1)] for rank in ranks] for at in range(steps)]  # by step and rank
        return Agreed(tuple(map(_step, rows)), tuple(tuple(rank[OF_STEP * steps :]) for rank in ranks))

    def drop(self) -> None:
        """Forget what was recorded, and what is being compared."""
        self._rows = []
        if self._wait is not None:
            self.take()


Phases = tuple[float, float, float, float]
"""Seconds of compressing, NaN where nobody waited for that; when communicating began and ended by the rank's clock;
seconds of decompressing."""


def phases(of: BucketMetrics) -> Phases:
    """Return what an exchange took on this rank, without what it took to look at it."""
    spans, sample = of.spans, of.report.sample
    before_s, after_s = (sample.before_s, sample.after_s) if sample is not None else (0.0, 0.0)
    compress_s = spans.compress_s - before_s if of.report.on_critical_path else math.nan
    return (compress_s, *spans.communicate, spans.decompress_s - after_s)


def kernels_s(of: BucketMetrics) -> float:
    """Return what compressing and decompressing a bucket took on this rank, as far as others waited for it."""
    compress_s, _, _, decompress_s = phases(of)
    return (0.0 if math.isnan(compress_s) else compress_s) + decompress_s


def _whole_s(of: BucketMetrics) -> float:
    _, began_s, ended_s, _ = phases(of)
    return kernels_s(of) + ended_s - began_s


def _step(row: Sequence[Sequence[float]]) -> StepTimes:
    whole_s, exchanging_s, waited_s, summed_s = zip(*row, strict=True)
    return StepTimes(fmean(whole_s), min(exchanging_s), min(waited_s), min(summed_s))


def gathered(mine: Sequence[float], engine: Engine) -> list[list[float]]:
    """Return the figures of all ranks, which bring as many. Collective."""
    with engine.aside():
        sent = torch.tensor(mine, dtype=torch.float64)
        return [part.tolist() for part in engine.control.allgather(sent, [len(mine)] * engine.world_size)]
