"""Whose indices does AR-Topk use: the ranks' in turn (STAR), or those that hold most (VAR)? One choice for each bucket.

Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning", leave it to future work to switch between
the two. Both send the same bytes, VAR after an all-gather of 8 bytes, so time alone would never take VAR: what speaks
for it is its gain.

Pure: what comes in is the same on all ranks, so what comes out is, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.controller.patience import Patience

STAR, VAR = "star", "var"


@dataclass(frozen=True)
class WorkerPolicy:
    """How STAR and VAR are compared.

    Attributes:
        margin: by how much VAR's gain a second must be above STAR's to be taken; to be kept, half of it.
        moved: relative change of the gain after which both are compared again (the paper's gain threshold), or of the
            largest share that a rank holds, or of what VAR would send: ranks may grow unequal with the same gain.
        evident: the change for which nobody is left in peace.
        turns: a rank that holds more than an equal share and was not heard for so many turns of all ranks is starved.
        least_steps: how many steps a comparison rests on, with few ranks; with more it is two turns of all.
        rest: how many measurements long both are left in peace after a comparison, watched or not; doubled each time
            nothing came of it.
        asleep: how many measurements long STAR is not watched after one that shows nothing new.
    """

    margin: float = 0.1
    moved: float = 0.1
    evident: float = 0.5
    turns: int = 4
    least_steps: int = 8
    rest: int = 16
    asleep: int = 7


@dataclass(frozen=True)
class Step:
    """What all ranks saw of a bucket in a step.

    Attributes:
        root: the rank whose indices were used.
        sent: by rank, the squared norm of what it sent.
        held: by rank, that of its corrected gradient: sent, and left.
        seconds: what the exchange took, as the mean over ranks, with what they waited for each other.
    """

    root: int
    sent: tuple[float, ...]
    held: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What a way of choosing was seen to do over some steps.

    Attributes:
        gain: the share of the squared norms of all ranks that was sent.
        most: the largest share of them that one rank held.
        seconds: the median.
        by_var: the gain, had the rank that has most to send been the root of each step.
    """

    gain: float
    most: float
    seconds: float
    by_var: float


class WorkerChooser:
    """Chooses between STAR and VAR for one bucket, while AR-Topk carries it.

    `used` is what it goes with now, `gain` what that was last seen to send, `seconds` what it took when it was chosen.

    It begins with STAR, measures it over two turns of all ranks, then VAR, after one turn in which the residuals get
    used to it, and takes what has the greater gain a second. A gain of g means that what a gradient says waits for
    1 / g steps on average; so that is compared in seconds, steps being longer by what VAR's exchange takes more.

    Trying VAR costs longer steps. A root sends a larger share of what it holds itself than the other ranks do, and from
    STAR both shares are known, so what VAR would send is, too: where that is no more, VAR is not tried.
    """

    def __init__(self, world_size: int, policy: WorkerPolicy) -> None:
        self._size, self._policy = world_size, policy
        self._known: dict[str, Measured] = {}
        self._steps: list[Step] = []  # with what is in use now, since it was last measured
        self._recent: list[Step] = []
        self._trying = False
        self._ages = [0] * world_size
        self._rest = 0  # steps until both may be compared again
        self._peace = Patience(policy.rest, 64 * policy.rest)  # the same, in measurements
        self._odd = 0
        self._asleep = 0  # steps in which nothing is seen
        self._alike = False  # whether VAR was last left alone because ranks are alike
        self.used = self._base = STAR  # the latter is what the last round of trials was made with
        self.gain = self.seconds = math.nan
        self.reason = "ranks take turns: not compared with VAR yet"

    @property
    def trying(self) -> bool:
        """Whether what is in use is on trial."""
        return self._trying

    @property
    def awake(self) -> bool:
        """Whether to watch the coming step: it costs a look at what is sent and left."""
        return self._asleep <= 0

    def pass_by(self, steps: int) -> None:
        """So many steps were not watched."""
        self._asleep -= steps
        self._rest -= steps

    def wake(self) -> None:
        """More or less is sent from now on: steps that were seen are not those to come."""
        if self._trying:
            self._switch(self._other)
        self._trying, self._steps, self._odd, self._asleep = False, [], 0, 0

    def restart(self) -> None:
        """Another round of trials of all schemes begins: times that were measured before are of another network.

        What was sent is not: where VAR sent no more than STAR, by the margin, it would not pay on any network.
        """
        if self._trying:
            self._switch(self._other)
        hopeless = {STAR, VAR} <= self._known.keys() and (
            self._known[VAR].gain <= (1 + self._policy.margin) * self._known[STAR].gain
        )
        if self.used == VAR or not hopeless:
            self._known, self._rest = {}, 0
        self._trying, self._steps, self._odd, self._asleep = False, [], 0, 0
        self._base = self.used

    def take(self, steps: Sequence[Step], step_s: float, spare_s: float = math.inf) -> bool:
        """Take what was seen since the last time; return whether something was decided.

        Args:
            step_s: the duration of a whole step.
            spare_s: by how much AR-Topk was faster than every other way in the last round: it may not get slower by
                more.
        """
        if not self.awake:  # seen before all knew that it sleeps
            self.pass_by(len(steps))
            return False
        for step in steps:
            self._ages = [0 if rank == step.root else age + 1 for rank, age in enumerate(self._ages)]
        finite = [step for step in steps if all(map(math.isfinite, (*step.sent, *step.held)))]
        self._steps += finite
        self._recent = [*self._recent, *finite][-self._turn :]
        self._rest -= len(steps)
        starved = self._starved()
        # Before STAR is known, as after a round of trials, both are about to be compared anyway.
        if self.used == VAR and STAR in self._known and not self._trying and starved:
            self._settle(STAR, starved, STAR)
            return True
        if len(self._steps) < self._block + (self._turn if self._trying else 0):
            return False
        measured = _measure(self._steps[-self._block :])
        self.gain = measured.gain
        if self._trying:
            self._known[self.used] = measured
            self._compare(step_s, spare_s)
            return True
        if not self._due(measured):
            self._steps = []
            self._sleep()
            return False
        if self.used == STAR and measured.by_var <= (1 + self._policy.margin) * measured.gain:
            return self._leave_alone(measured)
        self._known = {self.used: measured}
        self._switch(self._other)
        self._trying = True
        return False

    @property
    def _turn(self) -> int:
        """Steps in which each rank is STAR's root equally often."""
        return self._size * math.ceil(self._policy.least_steps / 2 / self._size)

    @property
    def _block(self) -> int:
        return 2 * self._turn

    @property
    def _other(self) -> str:
        return VAR if self.used == STAR else STAR

    def _due(self, measured: Measured) -> bool:
        """Whether to compare: nothing is known yet, or twice in a row something was not what it was."""
        if not self._known:
            return True
        known = self._known[self.used]
        change = max(_apart(measured.gain, known.gain), _apart(measured.most, known.most))
        if self.used == STAR:
            change = max(change, _apart(measured.by_var, known.by_var))
        self._odd = self._odd + 1 if change > self._policy.moved else 0
        return self._odd >= 2 and (self._rest <= 0 or change > self._policy.evident)

    def _leave_alone(self, star: Measured) -> bool:
        """VAR is not worth a trial; return whether that is news."""
        expected = f"VAR would send some {star.by_var:.3f} of the squared norm a step"
        self.reason = f"no rank has much more to send than others: {expected} and STAR sends {star.gain:.3f}"
        self._known[STAR], self.seconds = star, star.seconds
        self._steps, self._odd = [], 0
        self._sleep()
        news, self._alike = not self._alike, True
        return news

    def _compare(self, step_s: float, spare_s: float) -> None:
        star, var = self._known[STAR], self._known[VAR]
        before = self._other  # this one is on trial
        margin = self._policy.margin if before == STAR else self._policy.margin / 2
        extra_s = max(0.0, var.seconds - star.seconds)
        longer = 1 + extra_s / step_s if step_s > 0 else 1.0
        figures = (
            f"VAR sends {var.gain:.3f} of the squared norm a step and STAR {star.gain:.3f}, "
            f"with steps {longer - 1:.1%} longer"
        )
        if self._base == STAR and extra_s > spare_s:
            self._settle(STAR, f"{figures}; with VAR another way would be faster than AR-Topk", before)
        elif var.gain > (1 + margin) * longer * star.gain:
            self._settle(VAR, figures, before)
        else:
            self._settle(STAR, figures, before)

    def _settle(self, chosen: str, reason: str, before: str) -> None:
        if chosen != before:
            self._peace.restart()
        rest = self._peace.length if chosen != before else self._peace.in_vain()
        self._rest, self._odd, self._trying = rest * self._block, 0, False
        self._switch(chosen)
        self.gain, self.seconds, self.reason = self._known[chosen].gain, self._known[chosen].seconds, reason

    def _sleep(self) -> None:
        """Nothing has moved. VAR needs to be watched all the same: it may starve a rank."""
        if self.used == STAR and self._odd == 0:
            self._asleep = self._policy.asleep * self._block

    def _switch(self, chosen: str) -> None:
        if chosen != self.used:
            self._alike = False
            self._ages = [0] * self._size
        self.used, self._steps = chosen, []

    def _starved(self) -> str:
        """Return in words which rank VAR has not heard for too long, although it holds something; or nothing."""
        held = [sum(step.held[rank] for step in self._recent) for rank in range(self._size)]
        limit = self._policy.turns * self._turn
        for rank, age in enumerate(self._ages):
            if age > limit and held[rank] > sum(held) / self._size:
                share = held[rank] / sum(held)
                return f"VAR has not used rank {rank}'s indices for {age} steps, and it holds {share:.0%} of all"
        return ""


def _measure(steps: Sequence[Step]) -> Measured:
    sent = sum(sum(step.sent) for step in steps)
    ranks = [sum(column) for column in zip(*(step.held for step in steps), strict=True)]
    held, seconds = sum(ranks), statistics.median(step.seconds for step in steps)
    if held <= 0:
        return Measured(1.0, 1.0, seconds, 1.0)
    return Measured(sent / held, max(ranks) / held, seconds, _by_var(steps) / held)


def _by_var(steps: Sequence[Step]) -> float:
    """Return what would have been sent, had the rank that has most to send been the root of each step.

    By what each rank sent of what it held when it was the root, and by what all sent of theirs when they were not.
    """
    by_roots, of_roots = sum(step.sent[step.root] for step in steps), sum(step.held[step.root] for step in steps)
    by_others = sum(map(sum, (step.sent for step in steps))) - by_roots
    of_others = sum(map(sum, (step.held for step in steps))) - of_roots
    foreign = by_others / of_others if of_others > 0 else 0.0
    own = []
    for rank in range(len(steps[0].held)):
        as_root = [step for step in steps if step.root == rank and step.held[rank] > 0]
        of_root = sum(step.held[rank] for step in as_root)
        mean = by_roots / of_roots if of_roots > 0 else 1.0  # of a rank that never was the root
        own.append(sum(step.sent[rank] for step in as_root) / of_root if of_root > 0 else mean)
    sent = 0.0
    for step in steps:
        _, share, held = max((share * held, share, held) for share, held in zip(own, step.held, strict=True))
        sent += foreign * sum(step.held) + (share - foreign) * held
    return sent


def _apart(a: float, b: float) -> float:
    """By how much the larger is above the smaller, relatively."""
    return max(a, b) / min(a, b) - 1 if min(a, b) > 0 else 0.0 if a == b else math.inf
