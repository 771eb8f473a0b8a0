"""A change of latency, seen in what agreeing takes: its messages are so small that they cost nothing else."""

from __future__ import annotations

import math

EVIDENT, LEAST_S = 3.0, 0.001
"""The factor by which the time must change, twice in a row, and the seconds: less is noise."""
BEYOND_NOISE = 10.0
"""The factor for which once is enough."""
SHARE = 0.08
"""And by this share of what the longest exchange takes, or it does not matter."""


class LatencyWatch:
    """Compares what ranks take to agree with what they took when the present choices were made.

    A network that becomes wide and far at once may leave an exchange as long as it was, although another way would now
    take half of it: then this alone tells. Pure: what comes in is the same on all ranks.
    """

    def __init__(self) -> None:
        self._usual = math.nan
        self._odd = 0

    @property
    def odd(self) -> bool:
        """Whether the last time was odd, and the next will tell more."""
        return self._odd > 0

    def reset(self) -> None:
        """The network is being measured anew: the next time is what is usual from now on."""
        self._usual, self._odd = math.nan, 0

    def changed(self, agree_s: float, exchange_s: float) -> str:
        """Return in words that the latency changed, or nothing.

        Args:
            agree_s: seconds of the last agreement, on the rank that waited least; 0 where there was none.
            exchange_s: seconds of the longest exchange of a bucket.
        """
        if agree_s <= 0:
            return ""
        if math.isnan(self._usual):
            self._usual = agree_s
        factor = max(agree_s, self._usual) / min(agree_s, self._usual)
        odd = factor > EVIDENT and abs(agree_s - self._usual) > max(LEAST_S, SHARE * exchange_s)
        self._odd = self._odd + 1 if odd else 0
        if self._odd < (1 if factor > BEYOND_NOISE else 2):
            return ""
        return f"ranks took {agree_s * 1e3:.2f} ms to agree instead of {self._usual * 1e3:.2f}"
