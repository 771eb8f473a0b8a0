"""How many steps lie between exchanges: the number by which a loss is reached soonest, as far as figures tell."""

from __future__ import annotations

import logging
from collections import deque
from statistics import median

from hvd_compress.cost.local_steps import LocalStepsCost

log = logging.getLogger("hvd_compress")

FIRST = 4
"""Until rounds have been measured."""
ROUNDS = 4
"""How many rounds are measured before each choice: the exchanges of all fragments in each."""
CLEAR = 0.97
"""A number is changed for one that promises less than this share of its seconds."""


def cosine_of_a_step(cosine: float, steps: int) -> float:
    """Return the cosine between what two ranks move in one step, where it is `cosine` after this many.

    What ranks share adds up, and what they do not grows by the root of the steps.
    """
    shared = max(cosine, 0.0)
    return shared / (shared + steps * (1 - shared)) if shared < 1 else 1.0


class Auto:
    """Chooses anew after each ROUNDS rounds.

    Attributes:
        reason: why it is as many, in words; empty before the first choice.
    """

    def __init__(self, fragments: int, delay: int, ranks: int, tells: bool) -> None:
        """`tells`: whether this rank logs what it has chosen."""
        self._tells = tells
        self._fragments, self._delay, self._ranks = fragments, delay, ranks
        self._every, self.reason, self._cosine = FIRST, "", 0.0
        self._rounds: deque[tuple[float, float, float]] = deque(maxlen=ROUNDS * fragments)

    def go_on(self, every: int) -> None:
        """A checkpoint had rounds of this number of steps, or synchronous ones."""
        self._every = every

    def measured(self, step_s: float, exchange_s: float, cosine: float) -> None:
        """A fragment has landed. All figures are the same on all ranks, which have exchanged them.

        Args:
            cosine: between what two ranks move in a step.
        """
        if exchange_s:  # what the first one took, the second tells
            self._cosine = cosine
            self._rounds.append((step_s, exchange_s * self._fragments, cosine))

    def measured_synchronous(self, step_s: float, exchange_s: float) -> None:
        """Synchronous steps have taken so long; ranks learn as alike as before."""
        self._rounds.extend([(step_s, exchange_s, self._cosine)] * ROUNDS * self._fragments)

    def choose(self) -> int:
        """Return the steps of the coming round."""
        if len(self._rounds) < ROUNDS * self._fragments:
            return self._every
        step_s, exchange_s, cosine = (median(each) for each in zip(*self._rounds, strict=True))
        found = LocalStepsCost(step_s, exchange_s, cosine, self._ranks, self._fragments, self._delay)
        best = found.best()
        changes = found.cost(best) < CLEAR * found.cost(self._every)
        if changes:
            self._every = best
        self.reason = _words(self._every, found)
        if changes and self._tells:
            log.info("local steps: %s", self.reason)
        self._rounds.clear()
        return self._every


def _words(every: int, found: LocalStepsCost) -> str:
    return (
        f"every={every}: a step takes {found.step_s:.3g} s and an exchange {found.exchange_s:.3g} s, "
        f"{found.seconds(every):.3g} s a step on average. Updates of two ranks have a cosine of {found.cosine:.2f} "
        f"in a step: an estimated {found.steps(every):.2f} times the steps, and "
        f"{found.cost(every) / found.cost(1):.2f} of the time, of synchronous training"
    )
