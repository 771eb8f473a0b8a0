"""Whether the network has changed where some buckets took another time: the others travel over it, too.

Pure, as the chooser is: the same on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from hvd_compress.controller.standing import Standing


class Witnesses:
    """What all buckets were known to take, and which of them would tell if they took another time, before a window."""

    def __init__(self, standings: Sequence[Standing], mixed: Collection[int]) -> None:
        """`mixed`: buckets whose steps in that window did not all go the same way, of which nothing can be told."""
        self._standings = standings
        self._known_s = [standing.seconds for standing in standings]
        self._tell = [standing.tells and number not in mixed for number, standing in enumerate(standings)]

    def deny(self, drifted: Collection[int], typical: Sequence[float]) -> bool:
        """Return whether most of the exchanges, by time, deny that the network is why buckets drifted.

        The standings must have seen the window: one that is in doubt since denies nothing.

        Args:
            drifted: those buckets.
            typical: seconds that each bucket took in the window; what is not finite says nothing.
        """
        calm_s = odd_s = 0.0
        for number, (standing, seconds) in enumerate(zip(self._standings, typical, strict=True)):
            if not math.isfinite(seconds):
                continue
            if number in drifted or standing.doubted:
                odd_s += max(self._known_s[number], seconds)
            elif self._tell[number]:
                calm_s += self._known_s[number]
        return calm_s > odd_s
