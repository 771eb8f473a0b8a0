"""Whose indices does AR-Topk use: the ranks' in turn (STAR), or those of the rank that holds most (VAR)?

Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning", leave it to future work to switch between
the two. Both send the same bytes, VAR after an all-gather of 8 bytes: what speaks for it is its gain.

Pure: what comes in is the same on all ranks, so what comes out is, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvd_compress.cost.paths import Path
from hvd_compress.events.history import Event
from hvd_compress.services.base import BucketMetrics

if TYPE_CHECKING:
    from typing_extensions import Self

STAR, VAR = "star", "var"
LEAST_STEPS = 8
"""What a comparison rests on, with few ranks; with more it is two turns of all."""
MARGIN = 0.1
"""By how much VAR must gain more than STAR: gains of two turns of the same code differ by some per cent."""
STARVED = 4
"""A rank that holds more than its share and was not heard for so many turns is starved."""


@dataclass(frozen=True)
class Sight:
    """What all ranks saw of a bucket in a step.

    Attributes:
        root: the rank whose indices were used.
        sent: by rank, the squared norm of what it sent.
        held: by rank, that of its corrected gradient: sent, and left.
    """

    root: int
    sent: tuple[float, ...]
    held: tuple[float, ...]

    @classmethod
    def of(cls, ranks: Sequence[Sequence[float]]) -> Self | None:
        """Return what ranks told, each by `figures()`; None where not all saw something."""
        roots, sent, left = zip(*ranks, strict=True)
        if not all(map(math.isfinite, (*roots, *sent, *left))):
            return None
        return cls(int(roots[0]), sent, tuple(s + rest for s, rest in zip(sent, left, strict=True)))


def figures(of: BucketMetrics) -> tuple[float, float, float]:
    """Return what this rank tells of a step: the root, and squared norms of what it sent and left; NaN for nothing."""
    stats, residual = of.report.root_stats, of.state.residual
    if stats is None or residual is None:
        return math.nan, math.nan, math.nan
    return float(stats.root), float(stats.sent), float(residual.square_norm())


class RootChooser:
    """STAR or VAR for one bucket, while AR-Topk carries it.

    It begins with STAR. A root sends a larger share of what it holds itself than the other ranks do, and from STAR both
    shares are known, so what VAR would gain is, too: where that is more by MARGIN, VAR is used. It goes back where VAR
    gains less than that, or starves a rank; then VAR rests for twice as many comparisons as the last time.

    Attributes:
        used: STAR or VAR.
        reason: why, in words; empty before the first comparison.
    """

    def __init__(self, world_size: int) -> None:
        self._turn = world_size * math.ceil(LEAST_STEPS / 2 / world_size)
        self._steps: list[Sight] = []
        self._ages = [0] * world_size
        self._rest, self._pause = 0, 1  # comparisons
        self._star_gain = math.nan
        self.used, self.reason = STAR, ""

    def take(self, steps: Sequence[Sight]) -> bool:
        """Take what was seen since the last time; return whether what is used has changed."""
        for step in steps:
            self._ages = [0 if rank == step.root else age + 1 for rank, age in enumerate(self._ages)]
        self._steps += steps
        if len(self._steps) < 2 * self._turn:
            return False
        seen, self._steps = self._steps[-2 * self._turn :], []
        held = [sum(column) for column in zip(*(step.held for step in seen), strict=True)]
        gain = sum(sum(step.sent) for step in seen) / sum(held) if sum(held) > 0 else 1.0
        if self.used == STAR:
            self._star_gain, self._rest = gain, self._rest - 1
            expected = _by_var(seen) / sum(held) if sum(held) > 0 else 1.0
            if self._rest < 0 and expected > (1 + MARGIN) * gain:
                self._switch(VAR, f"VAR would send {expected:.3f} of the squared norm a step, and STAR {gain:.3f}")
                return True
            return False
        for rank, age in enumerate(self._ages):
            if age > STARVED * self._turn and held[rank] > sum(held) / len(held):
                self._give_up(f"VAR has not used rank {rank}'s indices for {age} steps")
                return True
        if gain <= (1 + MARGIN / 2) * self._star_gain:
            self._give_up(f"VAR sends {gain:.3f} of the squared norm a step, and STAR {self._star_gain:.3f}")
            return True
        return False

    def _give_up(self, reason: str) -> None:
        self._pause *= 2
        self._rest = self._pause
        self._switch(STAR, reason)

    def _switch(self, used: str, reason: str) -> None:
        self.used, self.reason, self._steps = used, reason, []
        self._ages = [0] * len(self._ages)


class Roots:
    """STAR or VAR for several buckets: what this rank saw of them, until ranks tell each other and decide by it."""

    def __init__(self, numbers: Iterable[int], world_size: int) -> None:
        """`numbers`: of the buckets."""
        self._choosers = {number: RootChooser(world_size) for number in numbers}
        self._seen: list[float] = []
        self._used: list[list[str]] = []  # by step that was seen, and bucket
        self._told: list[list[str]] = []  # of the steps that ranks are comparing

    @property
    def numbers(self) -> Iterable[int]:
        return self._choosers.keys()

    def path(self, number: int, path: Path) -> Path:
        """Return the path with the root that is used, where AR-Topk carries the bucket."""
        chooser = self._choosers.get(number)
        return path if chooser is None or path.collective != STAR else replace(path, collective=chooser.used)

    def reason(self, number: int, path: Path) -> str:
        """Return why, in words; nothing before the first comparison, or where AR-Topk does not carry the bucket."""
        return self._choosers[number].reason if number in self._choosers and path.collective in (STAR, VAR) else ""

    def see(self, metrics: Sequence[BucketMetrics]) -> None:
        """A step is over; before take()."""
        self._used.append([chooser.used for chooser in self._choosers.values()])
        self._seen += [figure for number in self._choosers for figure in figures(metrics[number])]

    def tell(self) -> list[float]:
        """Return what the other ranks are to know of the steps that were seen."""
        seen, self._seen, self._told, self._used = self._seen, [], self._used, []
        return seen

    def take(self, step: int, ranks: Sequence[Sequence[float]]) -> list[Event]:
        """Take what all ranks have told, by rank, after a step; return an event of each bucket that changes."""
        changed, width = [], 3 * len(self._choosers)
        for place, (number, chooser) in enumerate(self._choosers.items()):
            own = [at for at, used in enumerate(self._told) if used[place] == chooser.used]
            rows = [[rank[width * at + 3 * place :][:3] for rank in ranks] for at in own]
            if chooser.take([sight for row in rows if (sight := Sight.of(row)) is not None]):
                changed.append(Event(step, "root", number, chooser.used, reason=chooser.reason))
        return changed


def _by_var(steps: Sequence[Sight]) -> float:
    """Return what would have been sent, had the rank that has most to send been the root of each step.

    By what each rank sent of what it held when it was the root, and by what all sent of theirs when they were not.
    """
    by_roots, of_roots = sum(step.sent[step.root] for step in steps), sum(step.held[step.root] for step in steps)
    by_others = sum(map(sum, (step.sent for step in steps))) - by_roots
    of_others = sum(map(sum, (step.held for step in steps))) - of_roots
    foreign = by_others / of_others if of_others > 0 else 0.0
    own = []
    for rank in range(len(steps[0].held)):
        as_root = [step for step in steps if step.root == rank and step.held[rank] > 0]
        of_root = sum(step.held[rank] for step in as_root)
        mean = by_roots / of_roots if of_roots > 0 else 1.0  # of a rank that never was the root
        own.append(sum(step.sent[rank] for step in as_root) / of_root if of_root > 0 else mean)
    sent = 0.0
    for step in steps:
        _, share, held = max((share * held, share, held) for share, held in zip(own, step.held, strict=True))
        sent += foreign * sum(step.held) + (share - foreign) * held
    return sent
