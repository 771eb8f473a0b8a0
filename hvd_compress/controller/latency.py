"""A change of latency, seen in what agreeing takes: its messages are so small that they cost nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.controller.differ import differ

EVIDENT, LEAST_S = 2.0, 0.001
"""The factor by which the time must shrink, or grow twice in a row, and the seconds: less is noise."""
BEYOND_NOISE = 5.0
"""The factor by which it must grow for once to be enough. Noise makes nothing shorter."""
MOST_NOISE = 10.0
"""So many times what is usual is learned as noise at once, and no more: a stall of seconds must not make deaf."""
LASTING = 4
"""So many times in a row are no noise, though noise may be as large."""
SHARE = 0.03
"""And by this share of what the longest exchange takes, or it does not matter: that has several times its steps."""


class LatencyWatch:
    """Compares what ranks take to agree with what they took since the network was last measured.

    A network that becomes wide and far at once may leave an exchange as long as it was, although another way would now
    take half of it: then this alone tells. Where processors are busy, some agreements take far longer than others for
    no reason; how much longer is learned, and has to be exceeded. To say that something changed costs little: the
    network is measured, and where it is what it was, nothing follows, and that was noise.

    Pure: what comes in is the same on all ranks.

    Attributes:
        odd: whether the last time was, beyond noise, and the next will tell more.
    """

    def __init__(self) -> None:
        self._known: list[float] = []  # the first two: the shorter one is usual
        self._row: list[float] = []  # odd times, one after the other
        self._noise_s = 0.0  # the most seconds above the usual ones that nothing came of
        self.odd = False

    @property
    def young(self) -> bool:
        """Whether it is not known yet what is usual."""
        return len(self._known) < 2

    def felt(self, own_s: float, exchange_s: float, deaf: bool = False) -> bool:
        """Whether an agreement took an odd time on this rank, so that the others had better hear of it soon.

        Where they are `deaf` it has to be as odd as makes once enough.
        """
        if self.young or not differ(own_s, min(self._known), EVIDENT, max(LEAST_S, SHARE * exchange_s)):
            return False
        factor = BEYOND_NOISE if deaf else 1.0
        grown = own_s - self._noise_s > max(EVIDENT, factor) * min(self._known)
        return grown or factor * own_s < min(self._known)

    def reset(self) -> None:
        """The network is another one: the next times say what is usual from now on."""
        self._known, self._row, self.odd = [], [], False
        self._noise_s /= 2  # processors may not be as busy any more, and a hiccup must not count for ever

    def was_noise(self) -> None:
        """The network was measured because of what was odd, and is what it was: that was noise, or is usual now."""
        usual = min(self._known)
        if self._row[-1] > usual and len(self._row) < LASTING:
            self._learn(usual, self._row)
        else:
            self._known = [min(self._row)]
        self._row, self.odd = [], False

    def changed(self, agree_s: float, exchange_s: float) -> str:
        """Return in words that the latency changed, or nothing.

        Args:
            agree_s: seconds of a small collective in the last agreement, on the rank that waited least but one; 0 where
                it is not known.
            exchange_s: seconds of the longest exchange of a bucket.
        """
        self.odd = False
        if agree_s <= 0:
            return ""
        if self.young:
            self._known.append(agree_s)
            return ""
        usual = min(self._known)
        factor = agree_s / usual
        if not differ(agree_s, usual, EVIDENT, max(LEAST_S, SHARE * exchange_s)):
            self._learn(usual, [agree_s, *self._row])
            self._row = []
            return ""
        self._row.append(agree_s)
        beyond = (agree_s - self._noise_s) / usual
        once = beyond > BEYOND_NOISE or factor < 1
        self.odd = once or beyond > EVIDENT
        needed = 1 if once else 2 if self.odd else LASTING
        if len(self._row) < needed:
            return ""
        return f"ranks took {agree_s * 1e3:.2f} ms to agree instead of {usual * 1e3:.2f}"

    def _learn(self, usual: float, seconds: Sequence[float]) -> None:
        most_s = self._noise_s + MOST_NOISE * usual
        self._noise_s = max(self._noise_s, min(max(seconds) - usual, most_s))
