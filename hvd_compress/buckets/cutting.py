"""Into how many buckets gradients are cut: found once, from what the first steps have waited for their exchange.

More buckets hide more of an exchange behind the backward pass, and each takes time of threads and kernels: of E seconds
that are waited for, n buckets leave about E / n, and cost n times BUCKET_S. Where ranks share cores they cost more, so
that fewer are tried when that number was not worth it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

STEPS = 5
"""That are looked at with each cut, behind one that is not, in which memory is new."""
BUCKET_S = 2e-3
"""What a bucket costs a step on a core that trains, too (benchmarks/results/overlap.md)."""
MARGIN = 0.02
"""Of a step: what another cut must save to stay."""
MOST = 8
LEAST_BYTES = 512 << 10
"""Of gradients in a bucket, on average."""


def number_of_buckets(waited_s: float, nbytes: int) -> int:
    """Return how many buckets to cut `nbytes` of gradients into whose exchange in one is waited for so long."""
    return max(1, min(MOST, round(math.sqrt(max(0.0, waited_s) / BUCKET_S)), nbytes // LEAST_BYTES))


def ddp_cap(sizes: Sequence[int], wanted: int) -> tuple[float, int]:
    """Return a `bucket_cap_mb`, in MiB, for a number of buckets, and how many DDP makes with it.

    It closes a bucket when that holds the cap or more. `sizes`: bytes of each gradient, in the order in which they are
    ready.
    """
    cap_mib = float(f"{sum(sizes) / wanted / 2**20:.2g}")
    made, size = 0, 0
    for number, nbytes in enumerate(sizes, start=1):
        size += nbytes
        if size >= cap_mib * 2**20 or number == len(sizes):
            made, size = made + 1, 0
    return cap_mib, made


@dataclass
class Watch:
    """What steps with one cut have waited for their exchange on this rank."""

    waited_s: list[float] = field(default_factory=list)

    def add(self, waited_s: float) -> bool:
        """Take a step; return whether it was the last one that is needed, on all ranks alike."""
        self.waited_s.append(waited_s)
        return len(self.waited_s) > STEPS

    @property
    def least_s(self) -> float:
        """What else a machine does makes a wait longer."""
        return min(self.waited_s[1:])


def agreed(of_ranks: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """Return what all ranks make of their figures: the wait of the rank that waits for nobody, and of each step the
    longest."""
    waited, *steps = zip(*of_ranks, strict=True)
    return min(waited), [max(step) for step in steps]


def is_shorter(steps_s: Sequence[float], before_s: Sequence[float]) -> bool:
    """Whether four of five steps are shorter than the median of those before, by the margin.

    Where steps vary much, as with more ranks than cores, medians and minima of a few happen to be shorter, too.
    """
    limit_s = (1 - MARGIN) * median(before_s)
    return 5 * sum(step_s < limit_s for step_s in steps_s) >= 4 * len(steps_s)


class Cutting:
    """Tries another cut, perhaps a second one of fewer buckets, and takes back what has not made steps shorter.

    Five steps with each, and where those of the other one are shorter five more with each, as a network and a machine
    may have been slower for all of the first five.

    Attributes:
        settled: whether nothing is tried any more.
        reason: of the cut in use, in words.
    """

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: of all gradients."""
        self._nbytes, self._watch = nbytes, Watch()
        self._taken_s: list[float] = []
        self._before_s: list[float] = []  # steps of the first cut, while the other one is looked at
        self._other, self._why, self._is_second = 0, "", False
        self._first = 0  # numbers of buckets
        self._tried: list[int] = []
        self.settled, self.reason = False, ""

    def step(self, waited_s: float, taken_s: float) -> list[float]:
        """Take what a step has waited and taken here; return figures for decide() where all ranks are to bring them."""
        self._taken_s.append(taken_s)
        return [self._watch.least_s, *self._taken_s[1:]] if self._watch.add(waited_s) else []

    def decide(self, of_ranks: Sequence[Sequence[float]], buckets: int) -> int:
        """Return into how many buckets to cut, of `buckets` now; 0: as at first. The same on all ranks."""
        waited_s, steps_s = agreed(of_ranks)
        self._watch, self._taken_s = Watch(), []
        if not self._other:
            self._first = buckets
            self._other = number_of_buckets(waited_s, self._nbytes)
            self._why = f"as {1e3 * waited_s:.1f} ms of the exchange were waited for"
            if self._other <= buckets:
                self.settled, self.reason = True, self._why
                return buckets
        if not self._before_s:
            self._before_s = steps_s
            return self._other
        is_worth_it = is_shorter(steps_s, self._before_s)
        if is_worth_it and not self._is_second:
            self._before_s, self._is_second = [], True
            return 0
        self._tried.append(self._other)
        fewer = round(math.sqrt(self._other))
        if not is_worth_it and len(self._tried) == 1 and fewer > self._first:
            self._other, self._before_s, self._is_second = fewer, [], False
            return 0
        self.settled = True
        compared = f"a step took {1e3 * median(steps_s):.1f} ms, and {1e3 * median(self._before_s):.1f} before"
        self.reason = (
            f"{self._why}: {compared}"
            if is_worth_it
            else f"{' and '.join(map(str, self._tried))} were tried, {self._why}, and taken back: {compared}"
        )
        return buckets if is_worth_it else 0
