"""What a scheme sends of what its ratio promises: an all-gather all, AR-Topk what one rank's indices hold.

With a ratio c an all-gather sends the largest elements of every rank, whose gain the gain curve tells. AR-Topk sends,
with the same c, the elements that one rank selects, which on the others are smaller. So at one ratio they differ both
in time and in gain, and are compared where they gain the same.

Pure: what comes in is the same on all ranks, so what comes out is the same, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

EXACT = 0.98
"""The gain curve is exact to 1 %: what sends more of it sends all of it."""
WEIGHT = 0.5
"""Of what is seen against what was seen before."""
FORGOTTEN = 0.1
"""How far the share of a scheme that is not in use goes back to 1 each time a ratio is chosen."""
MOVED = 0.25
"""The relative change of a share at which what was chosen by it is chosen anew."""


class Shares:
    """Learns the share of each scheme of one bucket; what ratios follow from it changes by adopt() alone.

    "star" stands for VAR as well: its share is that of whichever of the two was in use.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._settled: dict[str, float] = {}

    def learn(self, scheme: str, sent: float, promised: float) -> None:
        """Take what a step sent with a scheme, and what the gain curve of the same gradient says of its ratio."""
        if not (math.isfinite(sent) and math.isfinite(promised) and promised > 0):
            return
        share = min(1.0, max(sent / promised, 1e-3))
        self._seen[scheme] = (1 - WEIGHT) * self._seen.get(scheme, share) + WEIGHT * share

    def adopt(self, used: str) -> None:
        """What was seen counts from now on; `used` is the scheme in use.

        What is known of another one is believed a little less each time: gradients change, and a scheme that cannot
        reach what is wanted is not tried, so that nothing new would ever be seen of it.
        """
        for scheme, share in self._seen.items():
            self._seen[scheme] = share if scheme == used else share + FORGOTTEN * (1 - share)
        self._settled = dict(self._seen)

    def of(self, scheme: str) -> float:
        """Return what counts; of what was not seen yet the best is believed, so that it will be."""
        share = self._settled.get(scheme, 1.0)
        return share if share < EXACT else 1.0

    def moved(self, scheme: str) -> str:
        """Return in words that a scheme sends another share than what counts, or nothing."""
        seen, known = self._seen.get(scheme, 1.0), self.of(scheme)
        if abs(seen - known) <= MOVED * known:
            return ""
        return f"{scheme} sends {seen:.0%} of the gain that its ratio promises, not {known:.0%}"

    def words(self, ratio: Callable[[str], float]) -> str:
        """Return what is known of schemes that send less; `ratio` says what each needs instead."""
        needs = ((scheme, self.of(scheme), ratio(scheme)) for scheme in sorted(self._settled) if self.of(scheme) < 1)
        return "".join(
            f"; {scheme} sends {share:.0%} of what its ratio promises: "
            + (f"{needed:.3g} is needed" if math.isfinite(needed) else "not enough with any")
            for scheme, share, needed in needs
        )

    def ratio(self, scheme: str, wanted: float, ratios: Sequence[float], gains: Sequence[float]) -> float:
        """Return the smallest of `ratios`, which ascend, with which a scheme gains `wanted`; infinity if none does.

        Args:
            gains: what the curve says of each ratio.
        """
        share = self.of(scheme)
        reach = (ratio for ratio, gain in zip(ratios, gains, strict=True) if share * gain >= wanted)
        return next(reach, math.inf)
