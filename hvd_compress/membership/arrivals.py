"""Arrivals by way of the coordinator, which every member of a job whose ranks come and go can ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hvd_compress.engines.arrivals import GroupArrivals, group_number


class MemberArrivals(GroupArrivals):
    """Arrivals of some ranks of a meeting: one message when this rank has waited for a while, two for a timeout."""

    def __init__(
        self,
        tell: Callable[[int, int], None],
        ask: Callable[[int], Mapping[int, int]],
        own: int,
        made: Counter[tuple[int, ...]],
        ranks: Sequence[int],
    ) -> None:
        """Nothing is communicated.

        Args:
            tell: says of a group by its number in which wait this rank is.
            ask: returns of a group, by ranks, the last wait that each has told.
            own: this rank.
            made: groups of this meeting that have been opened, by their ranks.
            ranks: of the group.
        """
        super().__init__(ranks, own)
        self._tell, self._ask, self._made = tell, ask, made

    def open(self) -> None:
        self.group = group_number(self.ranks, self._made)

    def announce(self, wait: int) -> None:
        self._tell(self.group, wait)

    def missing(self, wait: int) -> tuple[int, ...]:
        told = self._ask(self.group)
        return tuple(rank for rank in self.others if told.get(rank, 0) < wait)

    def announced(self, rank: int) -> int:
        return self._ask(self.group).get(rank, 0)
