"""How choices that stand are watched: when ranks compare times, and what says that the network may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hvd_compress.controller.alarm import Alarm, Ear
from hvd_compress.controller.latency import LatencyWatch
from hvd_compress.controller.report import Agreed

T = TypeVar("T")

OVERHEAD = 0.01
"""Share of the time of training that looks at gains may take."""
SHORT_WINDOW, WINDOW = 4, 8
"""Steps between two comparisons of a choice that stands; where something is odd, and at first, the short one.

For some changes no exchange takes another time, and agreeing alone tells. Each rank knows what it took there, and says
it in its next payload: so it is a window, the two steps in which ranks agree on it, a turn of all ranks and a round of
trials until the choice is right, some 30 steps; more of steps so short that WINDOW_S holds more of them.
"""
WINDOW_S = 0.5
"""Where steps are so short that windows are over sooner, they are as long as this: to compare costs some of them."""
EXCHANGED, FELT = 1, 2
"""What a rank says: its exchanges took another time, or the last comparison did."""
WORDS = {EXCHANGED: "a rank's exchanges took another time", FELT: "a rank took another time to agree"}
COMPARED = 8
"""The last steps of a window, which are told."""


class Watch:
    """The windows in which choices stand, the alarms of ranks, and what agreeing takes.

    What is decided here is the same on all ranks, but for `note`, which is what this rank says to the others.
    """

    def __init__(self) -> None:
        self._window = SHORT_WINDOW
        self._fresh = True  # the first window tells what is usual, and memory whether it holds
        self._alarm = Alarm()
        self._ears = {EXCHANGED: Ear(), FELT: Ear()}
        self._latency = LatencyWatch()
        self._felt = False  # on this rank
        self._denied = False  # whether the last agreement was felt to be odd, and that was noise

    @property
    def note(self) -> int:
        """What this rank is to tell the others: that its exchanges took another time, that the last comparison did."""
        return EXCHANGED * self._alarm.raised + FELT * self._felt

    @property
    def heard(self) -> str:
        """Why ranks are to measure the network now, as one of them said so; or nothing."""
        return next((WORDS[said] for said, ear in self._ears.items() if ear.due), "")

    @property
    def length(self) -> int:
        """How many steps there are from one comparison to the next, while choices stand."""
        return SHORT_WINDOW if self._fresh or self._latency.young else self._window

    @property
    def latency_known(self) -> bool:
        """Whether the last comparison says that the latency is what it was."""
        return not (self._latency.young or self._latency.odd)

    def seen(self, seconds: float) -> None:
        """Take what the exchanges of a step took on this rank, all buckets together."""
        self._alarm.seen(seconds)

    def hear(self, said: int) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        for what, ear in self._ears.items():
            ear.hear(bool(said & what))
        if said & FELT and self._ears[FELT].deaf:  # to compare costs less than to measure, and tells them all
            self._window = SHORT_WINDOW

    def ask(self, steps: Sequence[T], settled: bool) -> Sequence[T]:
        """Ranks are about to compare their times: return of which steps. Of a window the first are too much to send.

        Args:
            settled: whether choices stand; else it is a round.
        """
        if not settled:
            return steps
        self._fresh = False
        return steps[-COMPARED:]

    def restart(self) -> None:
        """Another choice stands, or none: what is usual has to be learned."""
        self._alarm.restart()
        self._ears[EXCHANGED].forget()
        self._fresh = True

    def take(self, agreed: Agreed, exchange_s: float) -> str:
        """Take an agreement; return in words that the latency changed, or nothing. What it took is of the one before.

        Args:
            exchange_s: seconds of the longest exchange of a bucket.
        """
        self._window = max(WINDOW, int(WINDOW_S / agreed.step_s)) if agreed.step_s > 0 else WINDOW
        self._ears[FELT].forget()  # now all know
        self._felt = self._latency.felt(agreed.own.seconds, exchange_s, deaf=self._ears[FELT].deaf)
        changed = self._latency.changed(agreed.agree_s, exchange_s)
        if changed and self._denied:
            self._latency.was_noise()
            changed = ""
        self._denied = False
        return changed

    def looked_at(self, odd: bool) -> None:
        """A window was looked at; perhaps something is odd."""
        if odd or self._latency.odd:
            self._window = SHORT_WINDOW

    def found_another(self) -> None:
        """The network was measured, and is another one: what is usual has to be learned, for agreements, too."""
        for ear in self._ears.values():
            ear.forgive()
        self._latency.reset()
        self._felt = self._denied = False

    def was_noise(self, agreeing: bool) -> None:
        """The network was measured, and is what it was.

        Args:
            agreeing: whether it was because of what all ranks took to agree, as take() said.
        """
        if agreeing:
            self._latency.was_noise()
        if self._ears[EXCHANGED].due:
            self._alarm.restart()
        if self._ears[FELT].due:
            self._denied = True
        self._felt = False
        for ear in self._ears.values():
            ear.was_false()
