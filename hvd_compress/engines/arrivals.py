"""Which ranks wait at the same place as this one: told without a collective, for the message of a timeout."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

_groups_made: Counter[tuple[int, ...]] = Counter()


class Arrivals:
    """Lets the ranks of a group tell each other how far they are. This base class tells nothing, because of `obstacle`.

    Every rank counts the places at which it waits for others, from 1, in the same order. `arrive` and `absent` are
    called in the thread that waits, by ranks that other ranks may not answer: neither waits for another rank, and an
    error of the transport rises as it is.
    """

    def __init__(self, obstacle: str = "this launcher offers no way to tell which") -> None:
        self.obstacle = obstacle

    def arrive(self, place: int) -> None:
        """Tell all others that this rank waits at place number `place`."""

    def collect(self) -> None:
        """Take what others have told so far, so that it does not pile up. Called once a step; costs microseconds."""

    def absent(self, place: int) -> tuple[int, ...] | None:
        """Return the ranks that have not told that they wait at `place` or later; None where that is not known."""
        return None


def group_number(ranks: Sequence[int]) -> int:
    """Return a number for a new group of these ranks, the same on all: they make their groups in one order."""
    _groups_made[tuple(ranks)] += 1
    return (zlib.crc32(repr(list(ranks)).encode()) << 24) + _groups_made[tuple(ranks)]


def describe(absent: Iterable[int] | None, obstacle: str) -> str:
    """Say who has not arrived, in words."""
    if absent is None:
        return f"another rank has not arrived ({obstacle})"
    ranks = [str(rank) for rank in absent]
    if not ranks:
        return "every rank has arrived, so the collective itself takes longer or hangs"
    return f"rank {ranks[0]} has not arrived" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have not arrived"
