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

For some changes nobody sounds an alarm, as they leave an exchange as long as it was: then it is the longest window and
a round of trials until the choice is right again, less than 30 steps.
"""
LONGEST_IN_THE_OPEN = 16
"""The longest where alarms are heard, and nothing hides what agreeing takes: a twelfth of a step or more."""
SOON = 3
"""Steps until the next comparison where what the last one took was odd."""
COMPARED = 8
"""The last steps of a window, which are compared."""


class Watch:
    """The windows in which choices stand, the alarm that ends them early, and what agreeing takes.

    What is decided here is the same on all ranks, but for `raised`, which is what this rank says to the others.

    Attributes:
        window: steps between two agreements, where no alarm is heard.
        hides: whether a step's computation hides what agreeing takes. If not, ranks that wait for it disturb each other
            less than ranks that exchange meanwhile.
    """

    def __init__(self) -> None:
        self.window = SHORTEST_WINDOW
        self._fresh = True  # the first window tells what is usual, and memory whether it holds
        self._alarm = Alarm()
        self.hides = True
        # Agreements beside the next step's computation take longer than those for which all ranks wait.
        self._latencies = {True: LatencyWatch(), False: LatencyWatch()}
        self._beside = self._told_beside = False  # the last one, and the one before, of which the last one tells
        self._latency = self._latencies[False]  # of those as that

    @property
    def raised(self) -> bool:
        """Whether this rank is to tell the others that its exchanges changed."""
        return self._alarm.raised

    @property
    def asked(self) -> bool:
        """Whether it was because of an alarm that ranks compared their times."""
        return self._alarm.asked

    @property
    def length(self) -> int:
        """How many steps there are between the last agreement and the next, while choices stand."""
        if self._alarm.due:
            return min(self.window, RECENT)
        if self._fresh or self._latencies[self.hides].young:
            return min(self.window, SHORTEST_WINDOW)
        return min(self.window, LONGEST_WINDOW) if self._alarm.deaf else self.window

    def seen(self, seconds: Sequence[float]) -> None:
        """Take what the exchange of each bucket took on this rank."""
        self._alarm.seen(seconds)

    def hear(self, raised: bool) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        self._alarm.hear(raised)

    def ask(self, steps: Sequence[T], settled: bool) -> Sequence[T]:
        """Ranks are about to compare their times: return of which steps.

        In a window those before the last ones are not what is to be looked at after an alarm, and else would be much to
        send.

        Args:
            settled: whether choices stand; else it is a round.
        """
        self._alarm.ask()
        self._told_beside, self._beside = self._beside, settled and self.hides
        if not settled:
            return steps
        return steps[-RECENT:] if self._alarm.due else steps[-COMPARED:]

    def restart(self) -> None:
        """Another choice stands, or none: what is usual has to be learned."""
        self._alarm.restart()
        self._fresh = True

    def was_noise(self) -> None:
        """The network was measured because of what agreeing took, and is what it was."""
        self._latency.was_noise()

    def remeasured(self) -> None:
        """The network was measured anew: what is usual has to be learned, for agreements, too."""
        for latency in self._latencies.values():
            latency.reset()

    def take(self, agreed: Agreed, exchange_s: float, idle_s: float) -> str:
        """Take an agreement; return in words that the latency changed, or nothing. What it took is of the one before.

        Ranks agree as rarely as keeps the cost below OVERHEAD, but after the longest window at the latest.

        Args:
            exchange_s: seconds of the longest exchange of a bucket.
            idle_s: seconds of a step in which nothing is exchanged.
        """
        self._latency = self._latencies[self._told_beside]
        cost_s = max(agreed.agree_s, agreed.agree_most_s)
        steps = cost_s / (OVERHEAD * agreed.step_s) if agreed.step_s > 0 else 0.0
        self.hides = cost_s < idle_s
        longest = LONGEST_WINDOW if self.hides else LONGEST_IN_THE_OPEN
        self.window = max(SHORTEST_WINDOW, min(longest, math.ceil(steps)))
        return self._latency.changed(agreed.agree_s, exchange_s)

    def answered(self, found: bool, odd: bool) -> None:
        """A window was looked at: a change was found or not, and perhaps something that is odd."""
        self._alarm.answered(found)
        self._fresh = False
        if self._latency.odd:
            self.window = SOON
        elif odd:
            self.window = SHORTEST_WINDOW
