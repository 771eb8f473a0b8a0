"""How far the clocks of ranks are apart, from exchanges that all took part in: as NTP does it, with no message more."""

from __future__ import annotations

from collections.abc import Sequence


def offsets(starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]) -> list[float]:
    """Return what to add to each rank's clock, in seconds, so that it shows what that of rank 0 does.

    No exchange ends on any rank before all have begun it. So the clock of rank r can be ahead of that of rank 0 by no
    more than any end there minus its start here says, and behind by no more than the reverse. The middle between the
    tightest of these bounds is off by no more than half the shortest exchange, where each rank comes last now and then.

    Args:
        starts: by rank and exchange, each by the rank's own clock.
        ends: the same.
    """
    found = []
    for own_starts, own_ends in zip(starts, ends, strict=True):
        most = min((end - start for end, start in zip(ends[0], own_starts, strict=True)), default=0.0)
        least = max((start - end for start, end in zip(starts[0], own_ends, strict=True)), default=0.0)
        found.append((most + least) / 2)
    return found
