"""The course of one bucket: what is tried, what stands, what is expected of it, and what was best on other networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from hvd_compress.controller.chooser import Choice, Chooser, scaled
from hvd_compress.controller.expected import Expected
from hvd_compress.controller.memory import Memory, Met
from hvd_compress.controller.network import Network
from hvd_compress.controller.ratios import Ratios
from hvd_compress.controller.sights import Workers
from hvd_compress.controller.workers import WorkerChooser
from hvd_compress.cost.paths import Path
from hvd_compress.events.history import Event, History

TRIED = "tried, to be compared"
"""The reason in a round: nothing is chosen yet."""
SIMILAR = 2.0
"""A ratio that differs from the one before by less than this factor travels as that did, without trials."""


class Course:
    """How one bucket travels, from round to round. The same on all ranks.

    It holds what belongs to this bucket alone; its ratio and whose indices it uses are in `Ratios` and `Workers`, which
    all buckets share. Every method that changes something is told the step after which it does.

    Attributes:
        chooser: tries ways, and keeps one.
    """

    def __init__(
        self,
        number: int,
        chooser: Chooser,
        expected: Expected,
        ratios: Ratios,
        workers: Workers,
        history: History,
        changed: Callable[[], None],
    ) -> None:
        """`number` is that among the controller's buckets; `changed` is called when something else is sent."""
        self.chooser, self._expected = chooser, expected
        self._number, self._memory = number, Memory()
        self._ratios, self._workers, self._history, self._changed = ratios, workers, history, changed

    @property
    def chosen(self) -> Path | None:
        """How it travels by the choice that stands, or stood before the round; STAR stands for VAR as well."""
        return self.chooser.choice.candidate if self.chooser.choice is not None else None

    def way(self, step: int) -> Path:
        """Return how it travels in the `step`-th step from now, STAR and VAR told apart."""
        return self._workers.way(self._number, self.chooser.candidate(step))

    def ratio(self, candidate: Path | None) -> float:
        """Return the ratio with which a candidate sends it; None is whatever sends the largest elements."""
        return self._ratios.ratio(self._number, candidate.scheme if candidate is not None else "")

    def _sent(self, candidate: Path) -> float:
        """Return the ratio that is sent: all, without compression."""
        return 1.0 if candidate.scheme == "dense" else self.ratio(candidate)

    def reason(self) -> str:
        """Return why it travels so."""
        choice = self.chooser.choice
        if choice is None or not self.chooser.settled:
            return TRIED
        return self._workers.reason(self._number, choice.candidate, choice.reason)

    def predicted(self, candidate: Path) -> float:
        """Return the seconds that it is expected to take by a candidate, from all that is known by now.

        Infinity for one that cannot gain what is wanted.
        """
        if not self._ratios.reaches(self._number, candidate.scheme):
            return math.inf
        return self._expected.seconds(candidate, self.ratio(candidate))

    def begin_round(self, step: int, reason: str) -> None:
        """Choose a ratio, and begin a round of trials with it."""
        self._ratios.reconsider(step, self._number, reason, self.chooser.choice)
        self._try(step, reason)

    def begin_on(self, network: Network, step: int, reason: str) -> None:
        """The network is another one: travel as before on one like it, or begin a round."""
        met = self._memory.recall(network)
        if met is None:
            self.begin_round(step, reason)
            return
        self._expected.learn(met.measured, partial(self._ratio_then, met))
        self._ratios.reconsider(step, self._number, reason, met.choice)
        if not self._resume(step, met):
            self._try(step, reason)

    def leave(self, left: Network, network: Network, step: int) -> None:
        """The network is another one: keep how it travelled on the one that is left, if a window has confirmed it."""
        self._expected.renew(network)
        self.chooser.standing.forgive()
        self._workers.restart(self._number)
        if (usual := self.chooser.usual) is not None:
            ratio, way = self.ratio(usual.candidate), self._workers.way(self._number, usual.candidate)
            self._memory.keep(Met(step, left, ratio, way, usual, dict(self.chooser.measured)))

    def try_what_lasts(self, step: int, words: str, network: Network) -> None:
        """It drifted, as `words` say, and not because of the network: where that is no noise, begin a round."""
        if self.chooser.standing.lasts(self.chooser.rival_s):
            self._expected.renew(network)
            self.begin_round(step, words)

    def choose_ratio(self, step: int, reason: str) -> None:
        """Send another ratio if one is better now."""
        before = self.ratio(self.chosen)
        if self._ratios.reconsider(step, self._number, reason, self.chooser.choice):
            self._send(step, before, reason)

    def learn(self, step: int, seconds: Sequence[float], kernels_s: Sequence[float]) -> bool:
        """Take what the steps of a round took; return whether all ways took another time in a final (`upset`)."""
        chooser = self.chooser
        for ahead, taken in enumerate(kernels_s):
            candidate = chooser.candidate(ahead)
            self._expected.kernels.note(candidate.scheme, self.ratio(candidate), taken)
        if not chooser.learn(seconds):
            return False
        if chooser.upset:  # its times may be of two networks: no ratio is to be chosen by them
            return True
        self.end_round(step)
        return False

    def end_round(self, step: int) -> None:
        """A round is over. With what it has shown, perhaps another ratio is better: then there is another one."""
        choice = self.chooser.choice
        assert choice is not None
        ratio, name = self.ratio(choice.candidate), str(self._workers.way(self._number, choice.candidate))
        sent, seconds, predicted_s = self._sent(choice.candidate), choice.seconds, choice.predicted_s
        self._history.add(Event(step, "choice", self._number, name, sent, seconds, predicted_s, reason=choice.reason))
        if self._ratios.revise(step, self._number, self.chooser.measured, choice):
            self._send(step, ratio, "another ratio is better")

    def take_window(self, step: int, seconds: float, way: Path | None, sent: float) -> str:
        """Take a window; return in words that it left what was measured, or nothing.

        Args:
            seconds: what an exchange took.
            way: how it travelled.
            sent: the gain in the last step, NaN where that was not looked at.
        """
        choice = self.chooser.choice
        assert choice is not None
        ratio = self._sent(choice.candidate)
        gain = sent if math.isfinite(sent) else self._workers.gain(self._number, choice.candidate)
        self._history.add(Event(step, "window", self._number, str(way), ratio, seconds, choice.predicted_s, gain))
        standing = self.chooser.standing
        known_s, mixed = standing.seconds, self._workers.mixed(self._number)
        # What it took while VAR was on trial is not what was chosen; but no trial takes several times as long.
        if not (standing.broken(seconds) if mixed else standing.drifted(seconds)):
            return ""
        took = f"took {seconds * 1e3:.2f} ms instead of {known_s * 1e3:.2f}"
        return f"bucket {self._history.number(self._number)} by {way} {took}"

    def take_worker(self, step: int, worker: WorkerChooser) -> None:
        """STAR or VAR was chosen for it."""
        if self._workers.mixed(self._number):
            self.chooser.standing.relearn()
            self._memory.tried()
        way = self.way(0)
        ratio, why = self.ratio(way), worker.reason
        self._history.add(
            Event(step, "worker", self._number, str(way), ratio, worker.seconds, gain=worker.gain, reason=why)
        )

    def _ratio_then(self, met: Met, candidate: Path) -> float:
        return met.ratio if candidate.scheme == met.choice.candidate.scheme else self.ratio(candidate)

    def _resume(self, step: int, met: Met) -> bool:
        """Travel as on this network before; return whether that can be: it sends about as much.

        Its next window is compared with what was usual then: should it differ, there will be a round.
        """
        number, way = self._number, met.choice.candidate
        ratio = self.ratio(way)
        if not self._ratios.reaches(number, way.scheme) or not 1 / SIMILAR < ratio / met.ratio < SIMILAR:
            return False
        if self._workers.way(number, way) != met.way:  # VAR then and STAR now, or the other way round
            return False
        predicted_s = self._expected.seconds(way, ratio)
        reason = f"best when the network was like this, before step {met.step}: {met.choice.reason}"
        longer = predicted_s / self._expected.seconds(way, met.ratio)
        seconds = longer * met.choice.seconds
        choice = Choice(way, seconds, predicted_s, reason)
        self.chooser.recall(choice, scaled(met.measured, longer))
        self._changed()
        sent = self._sent(way)
        self._history.add(Event(step, "choice", number, str(met.way), sent, seconds, predicted_s, reason=reason))
        return True

    def _try(self, step: int, reason: str) -> None:
        """Begin a round of trials, with the ratio that it has now."""
        self._memory.tried()
        self.chooser.begin_round(self.predicted)
        self._changed()
        self._workers.restart(self._number)
        self._history.add(Event(step, "begin", self._number, ratio=self.ratio(None), reason=reason))

    def _send(self, step: int, before: float, reason: str) -> None:
        """The ratio is another one than `before`: try how it travels best, unless that is clear."""
        used, number = self.chosen, self._number
        after = self.ratio(used)
        fits = used is not None and used.scheme != "dense" and self._ratios.reaches(number, used.scheme)
        if used is None or not fits or not self._ratios.pays(number) or not 1 / SIMILAR < after / before < SIMILAR:
            self._try(step, reason)
            return
        self.chooser.scale(self._expected.seconds(used, after) / self._expected.seconds(used, before))
        self._workers.wake(number)
        self._changed()
