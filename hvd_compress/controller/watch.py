"""How choices that stand are watched: when ranks compare times, and what says that the network may have changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from hvd_compress.controller.alarm import Alarm, Ear
from hvd_compress.controller.latency import LatencyWatch
from hvd_compress.controller.report import Agreed

T = TypeVar("T")

OVERHEAD = 0.01
"""Share of the time of training that agreeing may take, were it not hidden behind the next step's computation; and that
looks at gains may take."""
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 8
"""Steps between two comparisons of a choice that stands; where something is odd, and at first, the shortest.

For some changes no exchange takes another time, and agreeing alone tells. Each rank knows what it took there, and says
it in its next payload: so it is one of the longest windows, a turn of all ranks and a round of trials until the choice
is right, some 30 steps; more of steps so short that LONGEST_S holds more of them.
"""
LONGEST_IN_THE_OPEN = 12
"""The longest where alarms are heard, and nothing hides what agreeing takes. It may cost more than OVERHEAD then; but
such a window, a step in which a rank tells what it felt, and a round of trials are 29 steps.
"""
LONGEST_S = 0.5
"""Where steps are so short that windows are over sooner, they may be longer than that."""
FADES = 0.9
"""What an agreement beside a step took fades by so much with each one that is waited for, which takes less."""
EXCHANGED, FELT = 1, 2
"""What a rank says: its exchanges took another time, or the last comparison did."""
WORDS = {EXCHANGED: "a rank's exchanges took another time", FELT: "a rank took another time to agree"}
COMPARED = 8
"""The last steps of a window, which are compared."""


class Watch:
    """The windows in which choices stand, the alarms of ranks, and what agreeing takes.

    What is decided here is the same on all ranks, but for `note`, which is what this rank says to the others.

    Attributes:
        hides: whether a step's computation hides what agreeing takes. If not, ranks that wait for it disturb each other
            less than ranks that exchange meanwhile.
        beside: whether the last agreement, or the one that is under way, is one beside a step.
    """

    def __init__(self) -> None:
        self._window, self._short = SHORTEST_WINDOW, 0  # steps; those of LONGEST_S
        self._fresh = True  # the first window tells what is usual, and memory whether it holds
        self._was_deaf = False  # whether alarms were not heeded when the window began
        self._alarm = Alarm()
        self._ears = {EXCHANGED: Ear(), FELT: Ear()}
        self._latency = LatencyWatch()
        self._felt = False  # on this rank
        self._denied = False  # whether the last agreement was felt to be odd, and that was noise
        self.hides = True
        self.beside = self._told_beside = False  # the last one tells of the one before
        self._beside_s = 0.0  # what one beside a step cost

    @property
    def note(self) -> int:
        """What this rank is to tell the others: that its exchanges took another time, that the last comparison did."""
        return EXCHANGED * self._alarm.raised + FELT * self._felt

    @property
    def heard(self) -> str:
        """Why ranks are to measure the network now, as one of them said so; or nothing."""
        return next((WORDS[said] for said, ear in self._ears.items() if ear.due), "")

    def length(self, headed: bool = True) -> int:
        """Return how many steps there are between the last agreement and the next, while choices stand.

        Args:
            headed: whether anything is sent with a header, in which a rank could raise an alarm.
        """
        if self._fresh or self._latency.young:
            return min(self._window, SHORTEST_WINDOW)
        heeded = headed and not self._was_deaf
        return self._window if heeded else min(self._window, max(LONGEST_WINDOW, self._short))

    def seen(self, seconds: float) -> None:
        """Take what the exchanges of a step took on this rank, all buckets together."""
        self._alarm.seen(seconds)

    def hear(self, said: int) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        for what, ear in self._ears.items():
            ear.hear(bool(said & what))
        if said & FELT and self._ears[FELT].deaf:  # to compare costs less than to measure, and tells them all
            self._window = SHORTEST_WINDOW

    def ask(self, steps: Sequence[T], settled: bool) -> Sequence[T]:
        """Ranks are about to compare their times: return of which steps. Of a window the first are too much to send.

        Args:
            settled: whether choices stand; else it is a round.
        """
        self._told_beside, self.beside = self.beside, settled and self.hides
        self._was_deaf = self._ears[EXCHANGED].deaf
        if not settled:
            return steps
        self._fresh = False
        return steps[-COMPARED:]

    def restart(self) -> None:
        """Another choice stands, or none: what is usual has to be learned."""
        self._alarm.restart()
        self._ears[EXCHANGED].forget()
        self._fresh = True

    def take(self, agreed: Agreed, exchange_s: float, idle_s: float) -> str:
        """Take an agreement; return in words that the latency changed, or nothing. What it took is of the one before.

        Ranks agree as rarely as keeps the cost below OVERHEAD, but after the longest window at the latest.

        Args:
            exchange_s: seconds of the longest exchange of a bucket.
            idle_s: seconds of a step in which nothing is exchanged.
        """
        steps = agreed.cost_s / (OVERHEAD * agreed.step_s) if agreed.step_s > 0 else 0.0
        if agreed.cost_s > 0:  # else it is not known
            self._beside_s = agreed.cost_s if self._told_beside else FADES * self._beside_s
            self.hides = max(agreed.cost_s, self._beside_s) < idle_s
        self._short = int(LONGEST_S / agreed.step_s) if agreed.step_s > 0 else 0
        longest = max(self._short, LONGEST_WINDOW if self.hides else LONGEST_IN_THE_OPEN)
        self._window = max(SHORTEST_WINDOW, min(longest, math.ceil(steps)))
        self._ears[FELT].forget()  # now all know
        self._felt = self._latency.felt(agreed.own.seconds, exchange_s, in_step=self.beside, deaf=self._ears[FELT].deaf)
        changed = self._latency.changed(agreed.agree_s, exchange_s)
        if changed and self._denied:
            self._latency.was_noise()
            changed = ""
        self._denied = False
        return changed

    def looked_at(self, odd: bool) -> None:
        """A window was looked at; perhaps something is odd."""
        if odd or self._latency.odd:
            self._window = SHORTEST_WINDOW

    def found_another(self) -> None:
        """The network was measured, and is another one: what is usual has to be learned, for agreements, too."""
        for ear in self._ears.values():
            ear.forgive()
        self._latency.reset()
        self._felt = self._denied = False
        self._beside_s = 0.0

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
