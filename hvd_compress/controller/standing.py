"""Whether the choice that stands for a bucket still takes what it took.

Pure, as the chooser is: the same on all ranks.
"""

from __future__ import annotations

import math
from enum import Enum

from hvd_compress.controller.differ import differ, times_apart
from hvd_compress.controller.patience import Patience
from hvd_compress.controller.policy import Policy


class Known(Enum):
    """Where it is known from what an exchange takes, and so what a window that evidently differs from it means."""

    WINDOW = "the first window in which nothing was odd"
    """Two windows in a row must deny it, or one, evidently; more where noise was taken for drift before."""
    TRIALS = "a round, or what it says of a little more or less"
    """Of several times the shortest was chosen, and the usual one is longer: the first window replaces it, unless it
    evidently differs. It may have been luck, or foretold badly: then there is one more round, once."""
    BEFORE = "a network like this, met before"
    """The same; but what has changed since then can be anything: there is a round."""
    NOTHING = "nothing"
    """Whatever the next window takes is usual: after one that denied what was known, so that noise goes no further."""


class Standing:
    """Compares windows with what is known of the choice that stands.

    Attributes:
        seconds: what an exchange by it takes, as far as is known.
        known: where from.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        most = 2**policy.calm
        self._patience = Patience(1, most, policy.forgets)  # so many evident windows in a row have the network measured
        self._lasting = Patience(most, most * most, policy.forgets)  # and so many odd ones are no noise
        self._retried = False  # whether there was a round as trials were denied, and no window has confirmed its own
        self._rest_on(math.nan, Known.NOTHING)

    def _rest_on(self, seconds: float, known: Known) -> None:
        self.seconds, self.known = seconds, known
        self._odd_windows, self._odd_s = 0, math.nan  # in a row; what the last one took
        self._denied: Known | None = None  # by the last one
        self._looked_at, self._looked_s = 0, math.nan  # both as they were when the network was last measured

    @property
    def odd(self) -> bool:
        """Whether the last window was odd, and the next will tell more; not where that was noise before."""
        return self._odd_windows > 0 and self._patience.fresh

    @property
    def tells(self) -> bool:
        """Whether a window that differs by the factor of a drift would be odd: enough is known, and enough is sent."""
        return self.known is Known.WINDOW and (1 - 1 / self._policy.drift) * self.seconds > self._policy.least_s

    @property
    def doubted(self) -> bool:
        """Whether the last window was odd."""
        return self._odd_windows > 0

    def begin(self, seconds: float, known: Known) -> None:
        """A choice was made: that it is to take so long is known from there."""
        self._rest_on(seconds, known)
        self._patience.restart()

    def scale(self, factor: float) -> None:
        """What is sent has become more or less: it is expected to take `factor` times as long.

        The next window says what is usual, unless it evidently differs from that: then the network has changed, too.
        Where nothing is known, it stays so.
        """
        self._rest_on(factor * self.seconds, Known.NOTHING if self.known is Known.NOTHING else Known.TRIALS)

    def relearn(self) -> None:
        """What is sent has changed, for a reason that is no drift: the next window is usual."""
        self._rest_on(self.seconds, Known.NOTHING)

    def drifted(self, seconds: float) -> bool:
        """Take what a window of steps took; return whether to measure the network. What is not finite says nothing."""
        if not math.isfinite(seconds):
            return False
        policy, first = self._policy, self.known is not Known.WINDOW
        limits = {Known.WINDOW: policy.drift, Known.NOTHING: math.inf}
        odd = differ(seconds, self.seconds, limits.get(self.known, policy.evident), policy.least_s)
        self._patience.pass_by(odd)
        self._lasting.pass_by(odd)
        if not odd:
            if first:
                self.seconds, self.known, self._retried = seconds, Known.WINDOW, False
            self._odd_windows, self._looked_at, self._denied = 0, 0, None
            return False
        factor = times_apart(seconds, self.seconds)
        self._odd_windows, self._odd_s = self._odd_windows + (2 if factor > policy.broken else 1), seconds
        self._denied = self.known if first else None
        if first:
            self.seconds, self.known = seconds, Known.NOTHING
        if self._looked_at and times_apart(seconds, self._looked_s) > policy.broken:
            return True  # it is not what was looked into
        patience = 1 if first else self._patience.length
        needed = patience if factor > policy.evident else min(2 * patience, 2**policy.calm)
        return self._odd_windows >= min(max(needed, 2 * self._looked_at), self._lasting.length)

    def broken(self, seconds: float) -> bool:
        """Whether a window is so far from what is known that it does not matter that VAR was on trial in it."""
        policy = self._policy  # VAR is never the shorter one
        far = seconds > policy.broken * self.seconds or self.seconds > policy.evident * seconds
        return far and abs(seconds - self.seconds) > policy.least_s

    def lasts(self, rival_s: float) -> bool:
        """It is not the network that is another one; return whether to try all ways again nevertheless.

        That is where it has lasted, as something else has changed, such as the load of processors; where what is known
        is of another time; and, once, where a lucky trial beat what is faster than the first window.

        Args:
            rival_s: what the fastest other way took in the last round.
        """
        self._patience.in_vain()
        self._looked_at, self._looked_s = self._odd_windows, self._odd_s
        if self._odd_windows >= self._lasting.length:
            self._lasting.in_vain()
            return True
        if self._denied is Known.TRIALS and not self._retried and self._odd_s > rival_s:
            self._retried = True
            return True
        return Known.BEFORE in (self._denied, self.known)

    def forgive(self) -> None:
        """The network has changed: what lasts is looked into as soon as at first."""
        self._lasting.restart()
