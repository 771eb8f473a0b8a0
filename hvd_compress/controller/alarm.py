"""The alarm: a rank that sees its exchanges take evidently longer, or less, says so in what it sends anyway.

Ranks compare their times rarely, as that costs a collective. A change must not wait for it: a bit in the header of a
payload makes all of them measure the network at once. Whose header counts, all ranks know alike: that of the rank whose
indices AR-Topk uses, and in an all-gather any.
"""

from __future__ import annotations

import statistics

from hvd_compress.controller.differ import differ
from hvd_compress.controller.patience import Patience

USUAL_STEPS = 4
"""From so many steps a rank learns what is usual."""
EVIDENT, LEAST_S = 1.5, 0.0003
"""The factor, and the seconds, by which the exchanges of a step must differ from that in all; twice in a row."""
DEAF, DEAFEST = 16, 256
"""Steps in which alarms are not heeded after one for which nothing was found; doubled each time, up to the second, and
halved again after as many in which none was raised."""


class Alarm:
    """Whether the exchanges of this rank take another time than usual.

    It belongs to this rank alone: it decides what that says, and nothing that is launched.
    """

    def __init__(self) -> None:
        self.restart()

    @property
    def raised(self) -> bool:
        """Whether to say in the coming step that something changed."""
        return self._odd >= 2

    def restart(self) -> None:
        """Another choice stands, or none, or nothing has changed: what is usual has to be learned."""
        self._first: list[float] = []  # steps, until usual is known
        self._usual_s: float | None = None
        self._odd = 0

    def seen(self, seconds: float) -> None:
        """Take what the exchanges of a step took here in which choices stood, all buckets together.

        One of many often takes longer than usual, such as the first, in which ranks wait for each other.
        """
        if self._usual_s is None:
            self._first.append(seconds)
            if len(self._first) == USUAL_STEPS:
                self._usual_s = statistics.median(self._first)
            return
        self._odd = self._odd + 1 if differ(seconds, self._usual_s, EVIDENT, LEAST_S) else 0


class Ear:
    """Whether the alarms of ranks are heeded, of one kind: after false ones not for a while. The same on all ranks.

    Attributes:
        due: whether there was an alarm that is to be looked into.
    """

    def __init__(self) -> None:
        self.due = False
        self._deaf_for, self._patience = 0, Patience(DEAF, DEAFEST, forgets=DEAFEST)

    @property
    def deaf(self) -> bool:
        """Whether alarms are not heeded now, as they were false before."""
        return self._deaf_for > 0

    def hear(self, raised: bool) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        self._deaf_for = max(0, self._deaf_for - 1)
        self._patience.pass_by(raised)
        self.due = self.due or (raised and not self.deaf)

    def forget(self) -> None:
        """What was heard is of another choice."""
        self.due = False

    def forgive(self) -> None:
        """There was a change: alarms are heeded."""
        self.due, self._deaf_for = False, 0
        self._patience.restart()

    def was_false(self) -> None:
        """The network was measured, and is what it was."""
        if self.due:
            self._deaf_for = self._patience.in_vain()
        self.due = False
