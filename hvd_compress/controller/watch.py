"""How choices that stand are watched: when ranks compare times, and what in them says that the network changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from hvd_compress.controller.alarm import RECENT, Alarm
from hvd_compress.controller.latency import LatencyWatch
from hvd_compress.controller.report import Agreed

T = TypeVar("T")

OVERHEAD = 0.01
"""Share of the time of training that agreeing may take, were it not hidden behind the next step's computation; and that
looks at gains may take."""
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 8
"""Steps between two comparisons of a choice that stands; where something is odd, and at first, the shortest.

For some changes nobody sounds an alarm, as they leave an exchange as long as it was, and agreeing alone tells, each
time of the time before. But each rank knows what it took there, and says it: so it is one of the longest windows, a
turn of all ranks and a round of trials until the choice is right, some 30 steps.
"""
LONGEST_IN_THE_OPEN = 16
"""The longest where alarms are heard, and nothing hides what agreeing takes."""
FADES = 0.9
"""What an agreement beside a step took fades by so much with each one that is waited for, which takes less."""
SOON = 3
"""Steps until the next comparison where what the last one took was odd."""
ALARM, FELT = 1, 2
"""What a rank says: its exchanges took another time, or the last comparison did."""
MOST_IN_VAIN = 16
"""After comparisons that came soon for nothing so many windows at most end as they were to."""
COMPARED = 8
"""The last steps of a window, which are compared."""


class Watch:
    """The windows in which choices stand, the alarm that ends them early, and what agreeing takes.

    What is decided here is the same on all ranks, but for `note`, which is what this rank says to the others.

    Attributes:
        window: steps between two agreements, where no alarm is heard.
        hides: whether a step's computation hides what agreeing takes. If not, ranks that wait for it disturb each other
            less than ranks that exchange meanwhile.
    """

    def __init__(self) -> None:
        self.window = SHORTEST_WINDOW
        self._fresh = True  # the first window tells what is usual, and memory whether it holds
        self._deaf = False  # whether alarms were not heeded when the window began
        self._alarm = Alarm()
        self.hides = True
        # Of all agreements: those beside a step take longer than those for which all ranks wait, which is noise.
        self._latency = LatencyWatch()
        self._beside = self._told_beside = False  # the last one, and the one before, of which the last one tells
        self._beside_s = 0.0  # what one beside a step cost
        self._felt = False  # on this rank
        self._soon = False  # a rank felt it: ranks are to compare soon
        self._under_way = False  # they do
        self._rest = self._vain = 0  # windows in which that is not heeded; the last number of them

    @property
    def note(self) -> int:
        """What this rank is to tell the others: that its exchanges took another time, that the last comparison did."""
        return ALARM * self._alarm.raised + FELT * self._felt

    @property
    def asked(self) -> bool:
        """Whether it was because of an alarm that ranks compared their times."""
        return self._alarm.asked

    @property
    def length(self) -> int:
        """How many steps there are between the last agreement and the next, while choices stand."""
        if self._alarm.due:
            return min(self.window, RECENT)
        if self._soon:
            return min(self.window, SOON)
        if self._fresh or self._latency.young:
            return min(self.window, SHORTEST_WINDOW)
        return min(self.window, LONGEST_WINDOW) if self._deaf else self.window

    def seen(self, seconds: float) -> None:
        """Take what the exchanges of a step took on this rank, all buckets together."""
        self._alarm.seen(seconds)

    def hear(self, said: int) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        self._alarm.hear(bool(said & ALARM))
        self._soon = self._soon or (bool(said & FELT) and self._rest == 0 and not self._under_way)

    def ask(self, steps: Sequence[T], settled: bool) -> Sequence[T]:
        """Ranks are about to compare their times: return of which steps.

        In a window those before the last ones are not what is to be looked at after an alarm, and else would be much to
        send.

        Args:
            settled: whether choices stand; else it is a round.
        """
        self._alarm.ask()
        self._under_way = True
        self._told_beside, self._beside = self._beside, settled and self.hides
        if not settled:
            return steps
        self._fresh = False
        self._rest = max(0, self._rest - 1)
        return steps[-RECENT:] if self._alarm.due else steps[-COMPARED:]

    def restart(self) -> None:
        """Another choice stands, or none: what is usual has to be learned."""
        self._alarm.restart()
        self._fresh = True

    def was_noise(self) -> None:
        """The network was measured because of what agreeing took, and is what it was."""
        self._latency.was_noise()

    def remeasured(self) -> None:
        """The network was measured anew: what is usual has to be learned, for agreements, too; alarms are heeded."""
        self._alarm.forgive()
        self._felt, self._rest, self._vain = False, 0, 0
        self._latency.reset()

    def take(self, agreed: Agreed, exchange_s: float, idle_s: float) -> str:
        """Take an agreement; return in words that the latency changed, or nothing. What it took is of the one before.

        Ranks agree as rarely as keeps the cost below OVERHEAD, but after the longest window at the latest.

        Args:
            exchange_s: seconds of the longest exchange of a bucket.
            idle_s: seconds of a step in which nothing is exchanged.
        """
        cost_s = max(agreed.agree_s, agreed.agree_most_s)
        steps = cost_s / (OVERHEAD * agreed.step_s) if agreed.step_s > 0 else 0.0
        self._beside_s = cost_s if self._told_beside else FADES * self._beside_s
        self.hides = max(cost_s, self._beside_s) < idle_s
        longest = LONGEST_WINDOW if self.hides else LONGEST_IN_THE_OPEN
        self.window = max(SHORTEST_WINDOW, min(longest, math.ceil(steps)))
        self._felt = self._latency.felt(agreed.own_s, exchange_s)
        changed = self._latency.changed(agreed.agree_s, exchange_s)
        if self._soon and not changed:
            self._vain = min(max(1, 2 * self._vain), MOST_IN_VAIN)
            self._rest = self._vain
        self._soon = self._under_way = False
        return changed

    def answered(self, found: bool, odd: bool) -> None:
        """A window was looked at: a change was found or not, and perhaps something that is odd."""
        self._alarm.answered(found)
        self._deaf = self._alarm.deaf
        if self._latency.odd:
            self.window = SOON
        elif odd:
            self.window = SHORTEST_WINDOW
