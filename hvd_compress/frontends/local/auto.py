"""How many steps lie between exchanges: the number by which a loss is reached soonest, as far as figures tell."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from hvd_compress.frontends.local.fragments import spacing

log = logging.getLogger("hvd_compress")

CANDIDATES = (1, 2, 4, 8, 16, 32)
FIRST = 4
"""Until rounds have been measured."""
ROUNDS = 4
"""How many rounds are measured before each choice: the exchanges of all fragments in each."""
CLEAR = 0.97
"""A number is changed for one that promises less than this share of its seconds."""


@dataclass(frozen=True)
class Measured:
    """What the steps and the exchanges of a training take. The same on all ranks.

    Attributes:
        step_s: seconds of a step of the slowest rank, without exchanges.
        exchange_s: of the exchange of the whole model, on the slowest rank.
        fragments: in which it is exchanged.
        delay: steps of training while which an exchange may run, if the next one does not begin sooner.
        cosine: between what two ranks move in one step.
        ranks: how many there are.
    """

    step_s: float
    exchange_s: float
    fragments: int
    delay: int
    cosine: float
    ranks: int

    def seconds(self, every: int) -> float:
        """Return the seconds of a step, where this many lie between exchanges."""
        if every == 1:  # of gradients, in which nothing is hidden
            return self.step_s + self.exchange_s
        hidden = min(self.delay, spacing(every, self.fragments))
        waits = max(self.exchange_s / self.fragments - hidden * self.step_s, 0.0)
        return self.step_s + self.fragments * waits / every

    def steps(self, every: int) -> float:
        """Return how many steps take the training where one of synchronous training takes it.

        Each rank learns from its own gradients alone until the next exchange. Of vectors with a mean cosine c between
        them, the mean of n has sqrt((1 + (n - 1) c) / n) of their norm: what an optimizer that normalises its steps,
        as AdamW, moves in the direction that all share is less by this factor on each rank by itself than by the mean
        gradient, however seldom ranks exchange. That trainings come to this as 1 - 1 / sqrt(every) is no law: of the
        steps measured (benchmarks/results/time-to-accuracy.md) it gives between 5 % fewer and 16 % more.
        """
        alone = math.sqrt(self.ranks / (1 + (self.ranks - 1) * max(self.cosine, 0.0)))
        return 1 + (alone - 1) * (1 - 1 / math.sqrt(every))

    def cost(self, every: int) -> float:
        """Return the seconds that take the training where one step of synchronous training takes it."""
        return self.seconds(every) * self.steps(every)


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
        if exchange_s:  # the first round tells of none
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
        found = Measured(step_s, exchange_s, self._fragments, self._delay, cosine, self._ranks)
        best = min(CANDIDATES, key=found.cost)
        changes = found.cost(best) < CLEAR * found.cost(self._every)
        if changes:
            self._every = best
        self.reason = _words(self._every, found)
        if changes and self._tells:
            log.info("local steps: %s", self.reason)
        self._rounds.clear()
        return self._every


def _words(every: int, found: Measured) -> str:
    return (
        f"every={every}: a step takes {found.step_s:.3g} s and an exchange {found.exchange_s:.3g} s, "
        f"{found.seconds(every):.3g} s a step on average. Updates of two ranks have a cosine of {found.cosine:.2f} "
        f"in a step: an estimated {found.steps(every):.2f} times the steps, and "
        f"{found.cost(every) / found.cost(1):.2f} of the time, of synchronous training"
    )
