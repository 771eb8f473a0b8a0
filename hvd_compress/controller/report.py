"""What ranks tell each other of the steps that are behind them, and what all of them make of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from hvd_compress.controller.clocks import offsets
from hvd_compress.engines.base import Engine

FRESH_S = 60.0
"""Clocks of hosts drift by a millisecond in this time: what was before tells little of them."""


@dataclass(frozen=True)
class Timing:
    """The phases of one bucket in one step on one rank, in seconds.

    Attributes:
        began_s: when communicating did, by the clock of this rank.
        leads: whether other ranks wait for what is compressed here (`ProbeReport.on_critical_path`).
    """

    compress_s: float
    communicate_s: float
    decompress_s: float
    began_s: float = 0.0
    leads: bool = True

    @property
    def seconds(self) -> float:
        """Of all three."""
        return self.compress_s + self.communicate_s + self.decompress_s


@dataclass(frozen=True)
class Took:
    """What an agreement took on this rank.

    Attributes:
        seconds: of a small collective for which ranks were in step.
        began_s: when that collective did, by the clock of this rank.
    """

    seconds: float = 0.0
    began_s: float = 0.0


@dataclass(frozen=True)
class Agreed:
    """What all ranks know of a run of steps.

    Attributes:
        seconds: by step and bucket: what the exchange took, kernels included, had all ranks come to it at once.
        kernels_s: by step and bucket: compression and decompression alone.
        step_s: the duration of a step, the longest mean of a rank.
        agree_s: what a small collective took in the last agreement, on the rank that waited least for the others but
            one. The one that comes last finds everything there, and may see no latency at all; the last but one waits
            for it.
        own: what this agreement took here: the one figure that differs between ranks.
        gains: by bucket: what the last of the steps was seen to gain, as the mean over ranks; empty where none was
            looked at.
        look_s: what looking at it took, the longest of a rank.
        told: by rank: the figures of its sights, `sights.Workers.told()`.
    """

    seconds: tuple[tuple[float, ...], ...]
    kernels_s: tuple[tuple[float, ...], ...]
    step_s: float
    agree_s: float
    own: Took
    gains: tuple[tuple[float, ...], ...] = ()
    look_s: float = 0.0
    told: tuple[tuple[float, ...], ...] = ()

    @property
    def span_s(self) -> float:
        """About how much of a step its exchanges take, one behind the other, where kernels run beside collectives."""
        steps = max(1, len(self.seconds))
        exchanges_s, kernels_s = sum(map(sum, self.seconds)) / steps, sum(map(sum, self.kernels_s)) / steps
        buckets = max(1, len(self.seconds[0]) if self.seconds else 0)
        return exchanges_s - kernels_s * (1 - 1 / buckets)


@dataclass(frozen=True)
class Look:
    """What this rank saw in a step: gains by bucket, as many on all ranks, and the seconds that it took to look."""

    gains: tuple[tuple[float, ...], ...] = ()
    seconds: float = 0.0


_NO_LOOK, _NOTHING = Look(), Took()


@dataclass
class Pending:
    """What this rank measured in the steps since ranks last agreed: phases by bucket, durations, and the last look."""

    steps: list[tuple[Timing, ...]] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    look: Look = _NO_LOOK

    def add(self, timings: Sequence[Timing], step_s: float, look: Look | None) -> None:
        """Take a step; None where nothing was looked at."""
        self.steps.append(tuple(timings))
        self.durations_s.append(step_s)
        self.look = look or self.look

    def step_s(self, last: int) -> float:
        """Return the mean duration of the `last` steps."""
        durations_s = self.durations_s[-last:]
        return sum(durations_s) / len(durations_s)


def combine(timings: Sequence[Timing], apart: Sequence[float]) -> tuple[float, float]:
    """Return what an exchange took in all and in its kernels, from its timings on all ranks.

    A rank that comes late has the others wait for it in their collective. That is no matter of how they exchange: it
    counts from when the last one came until the last one has ended, by one clock. To that come the kernels, as the mean
    over ranks: which of them is delayed by other processes is chance. Kernels alone count as on the slowest rank.

    Args:
        apart: how far clocks are (`clocks.offsets`).
    """
    begun = [timing.began_s + offset for timing, offset in zip(timings, apart, strict=True)]
    communicate_s = max(b + t.communicate_s for b, t in zip(begun, timings, strict=True)) - max(begun)
    compress_s = [t.compress_s for t in timings if t.leads]
    decompress_s = [t.decompress_s for t in timings]
    total = statistics.fmean(compress_s) + communicate_s + statistics.fmean(decompress_s)
    return total, max(compress_s) + max(decompress_s)


def median(seconds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return each bucket's median over steps."""
    return tuple(statistics.median(column) for column in zip(*seconds, strict=True))


def agree(
    engine: Engine,
    steps: Sequence[Sequence[Timing]],
    step_s: float,
    before: Took = _NOTHING,
    look: Look = _NO_LOOK,
    told: Sequence[float] = (),
) -> Agreed:
    """Exchange what this rank measured; every rank passes as many steps, buckets, gains and figures that are `told`.

    Collective, in the engine's thread: an all-gather of 8 * (4 * steps * buckets + 4 + gains + told) bytes a rank, and
    one of 8 bytes, to which no rank comes late: what that takes is told the next time.

    Args:
        before: what it took here the last time.
    """
    own = [value for step in steps for timing in step for value in _numbers(timing)]
    seen = [gain for gains in look.gains for gain in gains]
    vector = [*own, step_s, before.seconds, look.seconds, before.began_s, *seen, *told]
    with engine.aside() as calls:
        sent = torch.tensor(vector, dtype=torch.float64)
        ranks = [part.tolist() for part in engine.control.allgather(sent, [len(vector)] * engine.world_size)]
        engine.control.allgather(torch.zeros(1, dtype=torch.float64), [1] * engine.world_size)
    took = Took(calls[-1].seconds, calls[-1].started_s)
    buckets = len(steps[0]) if steps else 0
    places = [[4 * (step * buckets + bucket) for bucket in range(buckets)] for step in range(len(steps))]
    timings = [[[_timing(*rank[at : at + 4]) for rank in ranks] for at in row] for row in places]
    met = [exchange for row in timings for exchange in row]
    end = len(own)
    last = [Timing(0.0, rank[end + 1], 0.0, rank[end + 3]) for rank in ranks]
    known = met and all(timing.communicate_s > 0 for timing in last)
    if known and met[0][0].began_s - last[0].began_s < FRESH_S:  # to that one ranks come together, or nearly so
        met.append(last)
    apart = _offsets(met, len(ranks))
    combined = [[combine(exchange, apart) for exchange in row] for row in timings]
    means = iter([sum(column) / len(ranks) for column in zip(*(rank[end + 4 :] for rank in ranks), strict=True)])
    agree_s_by_rank = sorted(rank[end + 1] for rank in ranks)
    return Agreed(
        tuple(tuple(seconds for seconds, _ in row) for row in combined),
        tuple(tuple(kernels for _, kernels in row) for row in combined),
        max(rank[end] for rank in ranks),
        agree_s_by_rank[min(1, len(ranks) - 1)],
        took,
        tuple(tuple(islice(means, len(gains))) for gains in look.gains),
        max(rank[end + 2] for rank in ranks),
        tuple(tuple(rank[len(rank) - len(told) :]) for rank in ranks),
    )


def _numbers(timing: Timing) -> tuple[float, float, float, float]:
    """Return what is told of it; NaN as the time to compress says that nobody waited for that."""
    compress_s = timing.compress_s if timing.leads else math.nan
    return compress_s, timing.communicate_s, timing.decompress_s, timing.began_s


def _timing(compress_s: float, communicate_s: float, decompress_s: float, began_s: float) -> Timing:
    """Return a timing of which that was told."""
    return Timing(compress_s, communicate_s, decompress_s, began_s, leads=not math.isnan(compress_s))


def _offsets(exchanges: Sequence[Sequence[Timing]], ranks: int) -> list[float]:
    starts = [[exchange[rank].began_s for exchange in exchanges] for rank in range(ranks)]
    ends = [[exchange[rank].began_s + exchange[rank].communicate_s for exchange in exchanges] for rank in range(ranks)]
    return offsets(starts, ends)
