"""The controller: after each step it looks at what the exchanges took, and says how each bucket travels next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hvd_compress.controller.chooser import Choice, Chooser, Policy
from hvd_compress.controller.expected import Bucket, Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.history import Event, History
from hvd_compress.controller.latency import LatencyWatch
from hvd_compress.controller.network import Network
from hvd_compress.controller.ratio import RatioChooser
from hvd_compress.controller.report import Agreed, Look, Timing, agree, median
from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.cost.candidates import Candidate
from hvd_compress.engines.base import Engine

OVERHEAD = 0.02
"""Share of the time of training that agreeing may take, were it not hidden behind the next step's computation."""
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 6
"""Steps between two looks at a choice that stands: few, so that a new one is made within 30 steps."""
SIMILAR = 2.0
"""A ratio that differs from the one before by less than this factor travels as that did, without trials."""
REST_WINDOWS = 4
"""Of so many windows one looks at gains, too; of more, should that cost more than OVERHEAD."""


class Controller:
    """Chooses a candidate for each bucket, from what all ranks measured.

    It alternates: in a *round* the promising candidates are tried on the gradients of as many steps; in *windows* of
    some steps the choice that stands is watched. At the end of either, ranks exchange their times (`report.agree`), and
    all make the same of it. When a choice no longer takes what it took, the network is measured anew by a few small
    collectives, and there is a new round.

    Where the ratio is to be chosen, too, gains are looked at in the last step of a round and of some windows. A ratio
    is chosen before a round, and again after it, when more is known; when another is better, there is a new round.

    All methods are called between steps, the same on all ranks. What is collective runs in the thread that launches
    collectives; the agreement on a window may do so while the next step computes.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        network: Network,
        policy: Policy,
        history: History,
        goal: AutoRatio | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`goal` says how ratios are chosen; without one they stay what the buckets say.

        `workers` says where STAR and VAR are to be chosen from; without it each candidate is what it says.
        """
        self._workers = workers or Workers((), network.world_size)
        self._buckets, self._network, self.history = list(buckets), network, history
        self._choosers = [Chooser(bucket.candidates, policy) for bucket in buckets]
        self._expected = [Expected(bucket, network) for bucket in buckets]
        self._goal = goal
        self._ratios = [RatioChooser(goal) for _ in buckets] if goal is not None else []
        self._seen = Look()  # what ranks will agree on next
        self._rest = REST_WINDOWS  # windows until gains are looked at again
        self._steps: list[tuple[Timing, ...]] = []  # since ranks last agreed
        self._step_s: list[float] = []
        self._agree_s = 0.0
        self._window = SHORTEST_WINDOW
        self._latency = LatencyWatch()
        self._beside_s = math.inf  # what of a step is not exchange, at least
        self._look(0, "training begins")

    @property
    def settled(self) -> bool:
        """Whether all choices stand."""
        return all(chooser.settled for chooser in self._choosers)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return what the coming step uses, by bucket."""
        ways = [chooser.candidate(len(self._steps)) for chooser in self._choosers]
        return tuple(self._workers.way(number, way) for number, way in enumerate(ways))

    def choices(self) -> tuple[Choice, ...]:
        """Return what was chosen, by bucket, once every one has been."""
        found = [chooser.choice for chooser in self._choosers]
        return tuple(choice for choice in found if choice is not None)

    def reasons(self) -> tuple[str, ...]:
        """Return why, by bucket."""
        return tuple(
            "tried, to be compared"
            if not c.settled or c.choice is None
            else self._workers.reason(number, c.choice.candidate, c.choice.reason)
            for number, c in enumerate(self._choosers)
        )

    def watched(self) -> tuple[bool, ...]:
        """Return of which buckets saw() wants to know in the coming step."""
        ways = [chooser.candidate(0) if chooser.settled else None for chooser in self._choosers]
        return tuple(self._workers.watches(number, way) for number, way in enumerate(ways))

    def saw(self, sights: Sequence[Sight | None]) -> None:
        """Take what this rank saw of each bucket in the step that is over: after every step, None where unwatched."""
        self._workers.saw(sights)

    def ratios(self) -> tuple[float, ...]:
        """Return k / numel of what the coming step sends where it is compressed, by bucket."""
        return tuple(bucket.ratio for bucket in self._buckets)

    @property
    def looking(self) -> tuple[float, ...]:
        """The ratios whose gains are to be looked at in the coming step; none in most steps."""
        if self._goal is None or not (self._waiting or len(self._steps) + 1 == self._length):
            return ()
        return self._goal.ratios if self._waiting or not self.settled or self._rest <= 0 else ()

    def record(self, timings: Sequence[Timing], step_s: float, look: Look | None = None) -> None:
        """Take what this rank measured in the step that is over; `step_s` is its whole duration."""
        assert len(timings) == len(self._buckets)
        self._steps.append(tuple(timings))
        self._step_s.append(step_s)
        self._seen = look or self._seen

    @property
    def due(self) -> bool:
        """Whether ranks must agree now."""
        return bool(self._buckets) and len(self._steps) >= self._length

    def report(self) -> Callable[[Engine], Agreed]:
        """Return the collective by which ranks agree on the steps since the last time, which are forgotten here."""
        steps, mean_s, look = self._steps, sum(self._step_s) / len(self._step_s), self._seen
        self._steps, self._step_s, self._seen = [], [], Look()
        notes = self._workers.notes()
        return partial(agree, steps=steps, step_s=mean_s, agree_s=self._agree_s, look=look, notes=notes)

    @property
    def _length(self) -> int:
        """How many steps there are between the last agreement and the next."""
        trials = max((chooser.trials_left for chooser in self._choosers), default=0)
        return 1 if self._waiting else trials or self._window

    @property
    def _waiting(self) -> bool:
        """Whether ratios are to be chosen, and no gains are known by which to do it."""
        return not all(chooser.gains for chooser in self._ratios)

    def take(self, step: int, agreed: Agreed) -> str:
        """Make of it what is to be made; return why the network must be measured anew, or nothing."""
        self._agree_s = agreed.own_s
        self._set_window(agreed)
        self._choose_workers(step, agreed)
        waited = self._waiting
        self._take_gains(agreed)
        if waited:
            if not self._waiting:
                self._look(step, "gains are known")
            return ""
        exchanges_s = sum(map(sum, agreed.seconds)) / len(agreed.seconds)
        self._beside_s = min(self._beside_s, max(0.0, agreed.step_s - exchanges_s))
        if self.settled:
            return self._watch(step, agreed) or self._follow_gains(step, agreed)
        self._learn(step, agreed)
        return ""

    def look_again(self, step: int, reason: str, engine: Engine) -> None:
        """Measure the network anew and begin a round. Collective."""
        self._network = self._network.remeasured(engine)
        self._latency.reset()
        for expected in self._expected:
            expected.renew(self._network)
        latency, transfer = self._network.latency, self._network.transfer
        self.history.add(Event(step, "network", latency=latency, transfer=transfer, reason=reason))
        self._look(step, reason)

    def predicted(self, number: int, candidate: Candidate) -> float:
        """Return the seconds that a bucket is expected to take by a candidate, from all that is known by now."""
        return self._expected[number].seconds(candidate, self._buckets[number].ratio)

    def _look(self, step: int, reason: str) -> None:
        """Begin a round for all buckets."""
        for number in range(len(self._buckets)):
            if self._ratios and not self._waiting:
                self._ratios[number].begin()
                self._choose_ratio(step, number, reason)
            self._try(step, number, reason)

    def _try(self, step: int, number: int, reason: str) -> None:
        """Begin a round of trials for a bucket, with the ratio that it has now."""
        self._choosers[number].look(partial(self.predicted, number))
        self._workers.restart(number)
        self.history.add(Event(step, "begin", number, ratio=self._buckets[number].ratio, reason=reason))

    def _choose_ratio(self, step: int, number: int, reason: str) -> bool:
        """Return whether it is another one than before, and worth trials."""
        assert self._goal is not None
        ratio, expected, choice = self._ratios[number], self._expected[number], self._choosers[number].choice
        beside_s = self._beside_s if math.isfinite(self._beside_s) else 0.0
        changed = ratio.choose(expected.prices(self._goal.ratios), expected.dense_s, beside_s)
        self._buckets[number] = replace(self._buckets[number], ratio=ratio.ratio)
        why = f"{reason}: {ratio.reason}"
        self.history.add(Event(step, "ratio", number, ratio=ratio.ratio, gain=ratio.gain, reason=why))
        compressed = choice is None or choice.candidate.scheme != "dense"
        return changed and (compressed or ratio.pays)

    def _send(self, step: int, number: int, before: float, reason: str) -> None:
        """The ratio is another one than `before`: try how it travels best, unless that is clear."""
        chooser, ratio = self._choosers[number], self._ratios[number]
        compressed = chooser.choice is not None and chooser.choice.candidate.scheme != "dense"
        if compressed and ratio.pays and 1 / SIMILAR < ratio.ratio / before < SIMILAR:
            chooser.rebase()
        else:
            self._try(step, number, reason)

    def _take_gains(self, agreed: Agreed) -> None:
        for ratio, chooser, gains in zip(self._ratios, self._choosers, agreed.gains, strict=False):
            # Without compression nothing is left over, and the next gradient alone gains more than one that
            # follows upon others.
            if chooser.choice is None or chooser.choice.candidate.scheme != "dense" or not ratio.gains:
                ratio.learn(gains[:-1])  # the last one is what was sent, in whichever way

    def _follow_gains(self, step: int, agreed: Agreed) -> str:
        """At the end of a window: choose anew where the gain has moved."""
        self._rest -= 1
        if agreed.gains:
            windows = agreed.look_s / (OVERHEAD * agreed.step_s * self._window) if agreed.step_s > 0 else 0.0
            self._rest = max(REST_WINDOWS, math.ceil(windows)) - 1
            for number, ratio in enumerate(self._ratios):
                if ratio.moved:
                    reason = f"the gain moved from {ratio.known_gain:.3f} to {ratio.gain:.3f}"
                    before = ratio.ratio
                    ratio.begin()
                    if self._choose_ratio(step, number, reason):
                        self._send(step, number, before, reason)
        return ""

    def _choose_workers(self, step: int, agreed: Agreed) -> None:
        spare_s = [chooser.spare_s() if chooser.settled else math.inf for chooser in self._choosers]
        for number, worker in self._workers.take(agreed.notes, agreed.step_s, spare_s):
            way = self._workers.way(number, self._choosers[number].candidate(0))
            self._choosers[number].rebase(worker.seconds)
            ratio, seconds = self._buckets[number].ratio, worker.seconds
            self.history.add(
                Event(step, "worker", number, str(way), ratio, seconds, gain=worker.gain, reason=worker.reason)
            )

    def _learn(self, step: int, agreed: Agreed) -> None:
        for number, chooser in enumerate(self._choosers):
            if chooser.settled:
                continue
            tried = [chooser.candidate(step) for step in range(chooser.trials_left)]
            for candidate, row in zip(tried, agreed.kernels_s, strict=False):
                self._expected[number].kernels.note(candidate.scheme, self._buckets[number].ratio, row[number])
            if chooser.learn([row[number] for row in agreed.seconds[: len(tried)]]):
                self._chosen(step, number)

    def _chosen(self, step: int, number: int) -> None:
        """A round is over. With what it has shown, perhaps another ratio is better: then there is another one."""
        choice, ratio = self._choosers[number].choice, self._buckets[number].ratio
        assert choice is not None
        name, seconds, predicted_s = str(choice.candidate), choice.seconds, choice.predicted_s
        self.history.add(Event(step, "choice", number, name, ratio, seconds, predicted_s, reason=choice.reason))
        if self._ratios and self._ratios[number].revise_once():
            self._expected[number].learn(self._choosers[number].measured, ratio)
            if self._choose_ratio(step, number, "after its trials"):
                self._send(step, number, ratio, "another ratio is better")

    def _watch(self, step: int, agreed: Agreed) -> str:
        """Return in words what left what was measured of it, or nothing."""
        typical = median(agreed.seconds)
        drifted = self._latency.changed(agreed.agree_s, max(typical))
        sent = [gains[-1] for gains in agreed.gains] or [math.nan] * len(self._buckets)
        for number, (chooser, seconds) in enumerate(zip(self._choosers, typical, strict=True)):
            choice = chooser.choice
            assert choice is not None
            name, ratio = str(self._workers.way(number, choice.candidate)), self._buckets[number].ratio
            gain = sent[number] if math.isfinite(sent[number]) else self._workers.gain(number, choice.candidate)
            self.history.add(Event(step, "window", number, name, ratio, seconds, choice.predicted_s, gain))
            if self._workers.mixed(number):
                continue  # what it took is not what was chosen
            if chooser.drifted(seconds) and not drifted:
                took = f"took {seconds * 1e3:.2f} ms instead of {choice.seconds * 1e3:.2f}"
                drifted = f"bucket {number} by {choice.candidate} {took}"
        return drifted

    def _set_window(self, agreed: Agreed) -> None:
        """Agree as rarely as keeps its cost below OVERHEAD."""
        steps = agreed.agree_s / (OVERHEAD * agreed.step_s) if agreed.step_s > 0 else 0.0
        self._window = max(SHORTEST_WINDOW, min(LONGEST_WINDOW, math.ceil(steps)))
