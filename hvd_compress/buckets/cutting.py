"""Into how many buckets gradients are cut: found once, from what the first steps have waited for their exchange.

More buckets hide more of an exchange behind the backward pass, and each takes time of threads and kernels: of E seconds
that are waited for, n buckets leave about E / n, and cost n times BUCKET_S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass
class Watch:
    """What steps with one cut have taken on this rank."""

    waited_s: list[float] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)

    def add(self, waited_s: float, taken_s: float) -> bool:
        """Take a step; return whether it was the last one that is needed, on all ranks alike."""
        self.waited_s.append(waited_s)
        self.taken_s.append(taken_s)
        return len(self.waited_s) > STEPS

    def figures(self) -> list[float]:
        """Return the least seconds that a step has waited and has taken: what else a machine does makes them longer."""
        return [min(self.waited_s[1:]), min(self.taken_s[1:])]


def agreed(of_ranks: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return what all ranks make of their figures: the wait of the rank that waits for nobody, and the longest step."""
    waited, taken = zip(*of_ranks, strict=True)
    return min(waited), max(taken)


class Cutting:
    """Tries one other cut, and takes back what has not made the step shorter.

    Attributes:
        settled: whether nothing is tried any more.
        reason: of the cut in use, in words.
    """

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: of all gradients."""
        self._nbytes, self._watch = nbytes, Watch()
        self._before_s: float | None = None  # a step of the first cut, while another one is tried
        self._tried = ""
        self.settled, self.reason = False, ""

    def step(self, waited_s: float, taken_s: float) -> list[float]:
        """Take what a step has waited and taken here; return figures for decide() where all ranks are to bring them."""
        return self._watch.figures() if self._watch.add(waited_s, taken_s) else []

    def decide(self, of_ranks: Sequence[Sequence[float]], buckets: int) -> int:
        """Return into how many buckets to cut, of `buckets` now; 0: as at first. The same on all ranks."""
        waited_s, taken_s = agreed(of_ranks)
        self._watch = Watch()
        if self._before_s is not None:
            self.settled = True
            compared = f"a step of {1e3 * taken_s:.1f} ms, {1e3 * self._before_s:.1f} before"
            is_worth_it = taken_s < (1 - MARGIN) * self._before_s
            self.reason = f"{self._tried}: {compared}" + ("" if is_worth_it else ", so they were taken back")
            return buckets if is_worth_it else 0
        wanted = number_of_buckets(waited_s, self._nbytes)
        self._tried = f"{wanted} buckets, as {1e3 * waited_s:.1f} ms of the exchange were waited for"
        if wanted <= buckets:
            self.settled, self.reason = True, f"{buckets} buckets: {1e3 * waited_s:.1f} ms were waited for"
            return buckets
        self._before_s = taken_s
        return wanted
