"""What exchanges take, one by one, from what ranks tell each other of their phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hvd_compress.papers.flexible.clocks import offsets
from hvd_compress.services.agreement import Phases


@dataclass(frozen=True)
class ExchangeTimes:
    """What ranks agree on of a bucket's exchange.

    Attributes:
        seconds: with its kernels, had all ranks come to it at once.
        kernels_s: to compress and to decompress, on the slowest rank.
    """

    seconds: float
    kernels_s: float


def exchange_times(told: Sequence[Sequence[float]], buckets: int) -> list[list[ExchangeTimes]]:
    """Return times by step and bucket.

    Args:
        told: by rank, one after the other, the phases of each bucket in each step.
        buckets: how many there are.
    """
    by_rank = [[(a, b, c, d) for a, b, c, d in zip(*[iter(rank)] * 4, strict=True)] for rank in told]
    exchanges = list(zip(*by_rank, strict=True))
    apart = _apart(exchanges, len(told))
    times = [_times(phases, apart) for phases in exchanges]
    return [times[at : at + buckets] for at in range(0, len(times), buckets)]


def _apart(exchanges: Sequence[Sequence[Phases]], ranks: int) -> list[float]:
    """Return how far the clocks of ranks are apart."""
    met = [phases for phases in exchanges if all(ended > began for _, began, ended, _ in phases)]
    starts, ends = ([[phases[rank][at] for phases in met] for rank in range(ranks)] for at in (1, 2))
    return offsets(starts, ends)


def _times(phases: Sequence[Phases], apart: Sequence[float]) -> ExchangeTimes:
    """A rank that comes late has the others wait for it in their collective, which is no matter of how they exchange:
    it counts from when the last one came until the last one has ended. Compression is the mean over ranks: which of
    them is delayed by other processes is chance."""
    begun = max(began + offset for (_, began, _, _), offset in zip(phases, apart, strict=True))
    ended = max(end + offset for (_, _, end, _), offset in zip(phases, apart, strict=True))
    compress_s, decompress_s = ([each[at] for each in phases if not math.isnan(each[at])] for at in (0, 3))
    seconds = fmean(compress_s) + ended - begun + fmean(decompress_s)
    return ExchangeTimes(seconds, max(compress_s) + max(decompress_s))
