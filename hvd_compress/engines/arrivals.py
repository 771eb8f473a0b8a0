"""Which ranks wait at the same place as this one: told without a collective, for the message of a timeout."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

_groups_made: Counter[tuple[int, ...]] = Counter()


class Arrivals:
    """Lets the ranks of a group tell each other how far they are. This base class tells nothing, because of `obstacle`.

    Every rank counts its waits for others, from 1, in the same order. No method waits for another rank, but it may for
    the launcher: the pipeline calls them in a thread of their own. An error of the transport rises as it is.
    """

    def __init__(self, obstacle: str = "this launcher offers no way to tell which") -> None:
        self.obstacle = obstacle

    def open(self) -> None:
        """Called before the first wait, by all ranks in the same order if they have several groups."""

    def announce(self, wait: int) -> None:
        """Tell all others that this rank is in its wait number `wait`."""

    def missing(self, wait: int) -> tuple[int, ...] | None:
        """Return the ranks that have not announced wait number `wait` or a later one; None where that is not known.

        By their numbers in the whole job.
        """
        return None


class GroupArrivals(Arrivals):
    """Arrivals of `ranks` (global ranks, in the order of the group), this one being `own`."""

    def __init__(self, ranks: Sequence[int], own: int) -> None:
        super().__init__()
        self.ranks, self.own, self.group = list(ranks), own, 0

    @property
    def others(self) -> list[int]:
        return [rank for rank in self.ranks if rank != self.own]

    def open(self) -> None:
        self.group = group_number(self.ranks)

    def missing(self, wait: int) -> tuple[int, ...]:
        return tuple(rank for rank in self.others if self.announced(rank) < wait)

    @abstractmethod
    def announced(self, rank: int) -> int:
        """Return the last wait that a rank has announced, 0 for none."""


def group_number(ranks: Sequence[int], made: Counter[tuple[int, ...]] = _groups_made) -> int:
    """Return a number for a new group of these ranks, the same on all: they open their groups in one order.

    Args:
        made: how many groups these ranks have opened, by default since the process began.
    """
    made[tuple(ranks)] += 1
    return (zlib.crc32(repr(list(ranks)).encode()) << 24) + made[tuple(ranks)]


def describe(missing: Iterable[int] | None, obstacle: str) -> str:
    """Say who has not arrived, in words."""
    if missing is None:
        return f"another rank has not arrived ({obstacle})"
    ranks = [str(rank) for rank in missing]
    if not ranks:
        return "every rank has arrived, so the collective itself takes longer, on a slow network, or hangs"
    return f"rank {ranks[0]} has not arrived" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have not arrived"
