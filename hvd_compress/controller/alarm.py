"""The alarm: a rank that sees its exchanges take evidently longer, or less, says so in what it sends anyway.

Ranks compare their times rarely, as that costs a collective. A change must not wait for it: one bit in the header of a
payload makes all of them compare at once. Whose header counts, all ranks know alike: that of the rank whose indices
AR-Topk uses, and in an all-gather any.
"""

from __future__ import annotations

import statistics

from hvd_compress.controller.differ import differ

USUAL_STEPS = 4
"""From so many steps a rank learns what is usual."""
EVIDENT, LEAST_S = 1.5, 0.0003
"""The factor, and the seconds, by which the exchanges of a step must differ from that in all; twice in a row."""
RECENT = 3
"""Steps that ranks compare then: the last ones."""
DEAF, DEAFEST = 16, 256
"""Steps in which alarms are not heeded after one for which nothing was found; doubled each time."""


class Alarm:
    """This rank's alarm, and whether those of others are heeded.

    seen() and raised belong to this rank alone: they decide what it says, and nothing that is launched. hear(), due and
    answered() are the same on all ranks.

    Attributes:
        asked: whether it is because of an alarm that ranks compare, or have compared, their times.
    """

    def __init__(self) -> None:
        self._first: list[float] = []  # steps, until usual is known
        self._usual_s = 0.0
        self._odd = 0
        self._heard = self.asked = False
        self._deaf_for, self._next_deaf = 0, DEAF

    @property
    def raised(self) -> bool:
        """Whether to say in the coming step that something changed."""
        return self._odd >= 2

    @property
    def due(self) -> bool:
        """Whether ranks are to compare their times as soon as there are RECENT steps."""
        return self._heard

    @property
    def deaf(self) -> bool:
        """Whether alarms are not heeded now, as they were false before."""
        return self._deaf_for > 0

    def restart(self) -> None:
        """Another choice stands, or none: what is usual has to be learned."""
        self._first, self._usual_s, self._odd, self._heard, self.asked = [], 0.0, 0, False, False

    def forgive(self) -> None:
        """There was a change after all: alarms are heeded."""
        self._next_deaf, self._deaf_for = DEAF, 0

    def seen(self, seconds: float) -> None:
        """Take what the exchanges of a step took here in which choices stood, all buckets together.

        One of many often takes longer than usual, such as the first, in which ranks wait for each other.
        """
        if not self._usual_s:
            self._first.append(seconds)
            if len(self._first) == USUAL_STEPS:
                self._usual_s = statistics.median(self._first)
            return
        self._odd = self._odd + 1 if differ(seconds, self._usual_s, EVIDENT, LEAST_S) else 0

    def hear(self, raised: bool) -> None:
        """Take what was said in a step, which all ranks heard alike."""
        self._deaf_for = max(0, self._deaf_for - 1)
        self._heard = self._heard or (raised and not self.deaf)

    def ask(self) -> None:
        """Ranks compare their times now; what is heard until they have done so waits for the next time."""
        self.asked = self._heard

    def answered(self, found: bool) -> None:
        """Ranks have compared their times, and found that something changed, or not."""
        if found:
            self.forgive()
        elif self.asked:
            self._deaf_for, self._next_deaf = self._next_deaf, min(2 * self._next_deaf, DEAFEST)
        self._heard = self._heard and not (found or self.asked)
        self.asked = False
