"""The controller: after each step it looks at what the exchanges took, and says how each bucket travels next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hvd_compress.controller.chooser import Choice, Chooser, Policy
from hvd_compress.controller.history import Event, History
from hvd_compress.controller.network import Network
from hvd_compress.controller.report import Agreed, Timing, agree, median
from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.controller.workers import STAR
from hvd_compress.cost.candidates import Candidate
from hvd_compress.cost.predict import predict
from hvd_compress.engines.base import Engine

OVERHEAD = 0.02
"""Share of the time of training that agreeing may take, were it not hidden behind the next step's computation."""
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 8
"""Steps between two looks at a choice that stands: few, so that a new one is made within 30 steps."""


@dataclass(frozen=True)
class Bucket:
    """What the controller knows of a bucket.

    Attributes:
        numel: elements.
        element_bytes: of a dense element on the wire.
        ratio: k / numel of what is sent.
        candidates: the ways in which it may travel, the same on every rank.
    """

    numel: int
    element_bytes: int
    ratio: float
    candidates: tuple[Candidate, ...]


class Controller:
    """Chooses a candidate for each bucket, from what all ranks measured.

    It alternates: in a *round* the promising candidates are tried on the gradients of as many steps; in *windows* of
    some steps the choice that stands is watched. At the end of either, ranks exchange their times (`report.agree`), and
    all make the same of it. When a choice no longer takes what it took, the network is measured anew by a few small
    collectives, and there is a new round.

    All methods are called between steps, the same on all ranks. What is collective runs in the thread that launches
    collectives; the agreement on a window may do so while the next step computes.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        network: Network,
        policy: Policy,
        history: History,
        workers: Workers | None = None,
    ) -> None:
        """`workers` says where STAR and VAR are to be chosen from; without it each candidate is what it says."""
        self._workers = workers or Workers((), network.world_size)
        self._buckets, self._network, self.history = tuple(buckets), network, history
        self._choosers = [Chooser(bucket.candidates, policy) for bucket in buckets]
        self._steps: list[tuple[Timing, ...]] = []  # since ranks last agreed
        self._step_s: list[float] = []
        self._agree_s = 0.0
        self._window = SHORTEST_WINDOW
        self._kernels_s: list[dict[str, float]] = [{} for _ in buckets]  # by bucket and scheme
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

    def record(self, timings: Sequence[Timing], step_s: float) -> None:
        """Take what this rank measured in the step that is over; `step_s` is its whole duration."""
        assert len(timings) == len(self._buckets)
        self._steps.append(tuple(timings))
        self._step_s.append(step_s)

    @property
    def due(self) -> bool:
        """Whether ranks must agree now."""
        trials = max((chooser.trials_left for chooser in self._choosers), default=0)
        return bool(self._buckets) and len(self._steps) >= (trials or self._window)

    def report(self) -> Callable[[Engine], Agreed]:
        """Return the collective by which ranks agree on the steps since the last time, which are forgotten here."""
        steps, mean_s = self._steps, sum(self._step_s) / len(self._step_s)
        self._steps, self._step_s = [], []
        return partial(agree, steps=steps, step_s=mean_s, agree_s=self._agree_s, notes=self._workers.notes())

    def take(self, step: int, agreed: Agreed) -> str:
        """Make of it what is to be made; return why the network must be measured anew, or nothing."""
        self._agree_s = agreed.own_s
        self._set_window(agreed)
        self._choose_workers(step, agreed)
        if self.settled:
            return self._watch(step, agreed)
        self._learn(step, agreed)
        return ""

    def look_again(self, step: int, reason: str, engine: Engine) -> None:
        """Measure the network anew and begin a round. Collective."""
        self._network = self._network.remeasured(engine)
        latency, transfer = self._network.latency, self._network.transfer
        self.history.add(Event(step, "network", latency=latency, transfer=transfer, reason=reason))
        self._look(step, reason)

    def _look(self, step: int, reason: str) -> None:
        for number, (chooser, bucket) in enumerate(zip(self._choosers, self._buckets, strict=True)):
            chooser.look(partial(self.predicted, number))
            self._workers.restart(number)
            self.history.add(Event(step, "begin", number, ratio=bucket.ratio, reason=reason))

    def predicted(self, number: int, candidate: Candidate) -> float:
        """Return the seconds that a bucket is expected to take by a candidate, from all that is known by now."""
        bucket, known = self._buckets[number], self._kernels_s[number]
        # Of a sparse scheme that was not tried yet, the kernels are expected to take as long as those of the others.
        kernels = known.get(candidate.scheme, max(known.values(), default=0.0) if candidate.scheme != "dense" else 0.0)
        return predict(candidate, bucket.numel, bucket.ratio, self._network, bucket.element_bytes, kernels).seconds

    def _choose_workers(self, step: int, agreed: Agreed) -> None:
        rivals = [chooser.rival_s(STAR) for chooser in self._choosers]
        for number, worker in self._workers.take(agreed.notes, agreed.step_s, rivals):
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
                known = self._kernels_s[number]
                known[candidate.scheme] = min(row[number], known.get(candidate.scheme, math.inf))
            if chooser.learn([row[number] for row in agreed.seconds[: len(tried)]]):
                assert chooser.choice is not None
                choice, ratio = chooser.choice, self._buckets[number].ratio
                self.history.add(
                    Event(
                        step,
                        "choice",
                        number,
                        str(choice.candidate),
                        ratio,
                        choice.seconds,
                        choice.predicted_s,
                        reason=choice.reason,
                    )
                )

    def _watch(self, step: int, agreed: Agreed) -> str:
        """Return in words which bucket left what was measured of it, or nothing."""
        drifted = ""
        for number, (chooser, seconds) in enumerate(zip(self._choosers, median(agreed.seconds), strict=True)):
            choice = chooser.choice
            assert choice is not None
            ratio, way = self._buckets[number].ratio, self._workers.way(number, choice.candidate)
            gain = self._workers.gain(number, way)
            self.history.add(Event(step, "window", number, str(way), ratio, seconds, choice.predicted_s, gain))
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
