"""The controller: after each step it looks at what the exchanges took, and says how each bucket travels next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hvd_compress.controller.chooser import Choice, Chooser
from hvd_compress.controller.course import Course
from hvd_compress.controller.expected import Bucket, Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.ratios import Ratios
from hvd_compress.controller.report import Agreed, Look, Pending, Timing, Took, agree, median
from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.controller.watch import OVERHEAD, Watch
from hvd_compress.controller.witnesses import Witnesses
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.events.history import Event, History


@dataclass(frozen=True)
class Suspicion:
    """What says that the network may have changed.

    Attributes:
        reason: in words.
        agreeing: whether it took another time to agree.
        drifted: in words, how a bucket's exchange did.
        upset: buckets of which all ways took another time in a final.
    """

    reason: str
    agreeing: bool = False
    drifted: Mapping[int, str] = field(default_factory=dict)
    upset: tuple[int, ...] = ()


class Controller:
    """Chooses a candidate for each bucket, from what all ranks measured.

    It alternates: in a *round* the promising candidates are tried on the gradients of as many steps; in *windows* of
    some steps the choice that stands is watched. At the end of either, ranks exchange their times (`report.agree`), and
    all make the same of it. When a choice no longer takes what it took, or a rank says in the header of a payload that
    it saw a change (`alarm`), the network is measured by a few small collectives. Where it is another one there is a
    new round, unless it was met before (`memory`). Where it is what it was, that was noise, of which there is much:
    computation delays exchanges, other ranks arrive late. What lasts all the same is tried anew for its bucket.

    Where the ratio is to be chosen, too, gains are looked at in the last step of a round and of some windows. A ratio
    is chosen before a round, and again after it, when more is known; when another is better, there is a new round.

    All methods but report() are called between steps, the same on all ranks. What is collective runs in the thread that
    launches collectives; the agreement on a window does so behind the exchanges of the next step.
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
        self._buckets, self._network, self.history = tuple(buckets), network, history
        self._watch = Watch()
        self._pending = Pending()
        expected = [Expected(bucket, network) for bucket in buckets]
        self._ratios = ratios = Ratios(goal, buckets, expected, history)
        self._courses = [
            Course(number, Chooser(bucket.candidates, policy), own, ratios, self._workers, history, self._choose_anew)
            for number, (bucket, own) in enumerate(zip(buckets, expected, strict=True))
        ]
        self._took = Took()  # to agree, the last time
        self._passed = 0  # steps that the last report was to be of
        self._begin_round(0, "training begins")

    @property
    def settled(self) -> bool:
        """Whether all choices stand."""
        return all(course.chooser.settled for course in self._courses)

    def candidates(self) -> tuple[Path, ...]:
        """Return what the coming step uses, by bucket."""
        trial, step = self._ratios.trial, len(self._pending.steps)
        if trial:
            return tuple(self._workers.way(number, way) for number, way in enumerate(trial.candidates))
        return tuple(course.way(step) for course in self._courses)

    def choices(self) -> tuple[Choice, ...]:
        """Return what was chosen, by bucket, once every one has been."""
        found = [course.chooser.choice for course in self._courses]
        return tuple(choice for choice in found if choice is not None)

    def reasons(self) -> tuple[str, ...]:
        """Return why, by bucket."""
        if self._ratios.trial:
            return ("a rollout",) * len(self._buckets)
        return tuple(course.reason() for course in self._courses)

    def watched(self) -> tuple[bool, ...]:
        """Return of which buckets saw() wants to know in the coming step."""
        trial = self._ratios.trial
        ways = [None if trial or not course.chooser.settled else course.chosen for course in self._courses]
        return tuple(self._workers.watches(number, way) for number, way in enumerate(ways))

    def saw(self, sights: Sequence[Sight | None]) -> None:
        """Take what this rank saw of each bucket in the step that is over: after every step, None where unwatched."""
        if not self._asleep:
            self._workers.saw(sights)

    def ratios(self) -> tuple[float, ...]:
        """Return k / numel of what the coming step sends where it is compressed, by bucket."""
        trial, step = self._ratios.trial, len(self._pending.steps)
        if trial:
            return (trial.ratio,) * len(self._buckets)
        return tuple(course.ratio(course.chooser.candidate(step)) for course in self._courses)

    @property
    def looking(self) -> tuple[float, ...] | None:
        """Whether to look at what the coming step sends, and which other ratios' gains to read; None in most steps."""
        length = self._length
        return self._ratios.looking(len(self._pending.steps) + 1 == length, self.settled, length)

    def record(self, timings: Sequence[Timing], step_s: float, look: Look | None = None) -> None:
        """Take what this rank measured in the step that is over; `step_s` is its whole duration."""
        assert len(timings) == len(self._buckets)
        if self._ratios.trial:
            assert look is not None
            self._ratios.record(timings, look.gains)
            return
        if not self._buckets or self._asleep:
            return  # ranks never agree on them, and nobody would forget them
        if self.settled:
            self._watch.seen(sum(timing.seconds for timing in timings))
        self._pending.add(timings, step_s, look)

    @property
    def due(self) -> bool:
        """Whether ranks must agree now."""
        return bool(self._buckets) and not self._asleep and len(self._pending.steps) >= self._length

    @property
    def _asleep(self) -> bool:
        """Whether steps are rolled out, or nothing can be chosen before some are."""
        return self._ratios.trial is not None or (self._ratios.waiting and bool(self.rollout_due))

    @property
    def note(self) -> int:
        """What this rank is to tell the others in the coming step, of its own times (`Watch.note`); 0 for nothing."""
        return self._watch.note if self.settled else 0

    def hear(self, said: int) -> None:
        """Take what ranks told in the step that is over, all of it: the same on all ranks, before record()."""
        self._watch.hear(said if self.settled else 0)

    def report(self) -> Callable[[Engine], Agreed]:
        """Return the collective by which ranks agree on the steps since the last time, which are forgotten here.

        In a round all wait for it; else it runs beside a step, as nothing depends on it yet.
        """
        told, pending, self._pending = self._workers.told(), self._pending, Pending()
        steps, self._passed = self._watch.ask(pending.steps, self.settled), len(pending.steps)
        step_s = pending.step_s(len(steps))
        return partial(agree, steps=steps, step_s=step_s, before=self._took, look=pending.look, told=told)

    @property
    def _length(self) -> int:
        """How many steps there are between the last agreement and the next."""
        trials = max((course.chooser.trials_left for course in self._courses), default=0)
        if self._ratios.waiting:
            return 1
        if trials:
            return trials
        return self._watch.length

    def take(self, step: int, agreed: Agreed) -> Suspicion | None:
        """Make of it what is to be made; return why the network must be measured, if it must."""
        self._took = agreed.own
        typical = median(agreed.seconds)
        longest_s = max(typical) if self.settled else max(map(max, agreed.seconds))  # in a round each step is another
        idle_s = agreed.step_s - agreed.span_s
        latency = self._watch.take(agreed, longest_s)
        used = self._in_use()
        self._choose_workers(step, agreed)
        waited = self._ratios.waiting
        # Gains were looked at in the last step; in a round each step has its own way.
        choosers = [course.chooser for course in self._courses]
        last_ways = [chooser.candidate(len(agreed.seconds) - 1) for chooser in choosers]
        sent = [
            self._workers.gain(number, way) if chooser.settled else math.nan
            for number, (chooser, way) in enumerate(zip(choosers, last_ways, strict=True))
        ]
        self._ratios.beside(idle_s)
        self._ratios.learn(agreed.gains, [chooser.choice for chooser in choosers], last_ways, sent)
        if waited:
            if not self._ratios.waiting:
                self._begin_round(step, "gains are known")
            return None
        if not self.settled:
            upset = self._learn(step, agreed)
            words = [f"bucket {self.history.number(number)} took another time in a final" for number in upset]
            reason = latency or next(iter(words), "")
            return Suspicion(reason, bool(latency), upset=upset) if reason else None
        mixed = [number for number in range(len(choosers)) if self._workers.mixed(number)]
        witnesses = Witnesses([chooser.standing for chooser in choosers], mixed)
        drifted = self._drift(step, agreed, typical, used)
        self._watch.looked_at(any(chooser.standing.odd for chooser in choosers))
        quiet = drifted and not latency and self._watch.latency_known
        if quiet and witnesses.deny(drifted, typical):
            self._take_for_local(step, drifted)
            drifted = {}
            if not self.settled:
                return None
        if reason := latency or next(iter(drifted.values()), ""):
            return Suspicion(reason, bool(latency), drifted)
        for number, reason in self._ratios.moved(agreed, last_ways, self._passed, OVERHEAD, step):
            self._courses[number].choose_ratio(step, reason)
        return None

    @property
    def alarm(self) -> Suspicion | None:
        """Why the network is to be measured before the coming step, if a rank said so."""
        asleep = not self.settled or self._ratios.trial or self._ratios.waiting
        return Suspicion(self._watch.heard) if self._watch.heard and not asleep else None

    @property
    def rollout_due(self) -> str:
        """Why steps are to be rolled out now, or nothing."""
        return self._ratios.rollout_due

    def roll_out(self, ratio: float) -> None:
        """The steps that come are to be taken back: they send this ratio, and are measured for report_rollout()."""
        self._ratios.roll_out(ratio)

    def report_rollout(self) -> Callable[[Engine], Agreed]:
        """The rollout is over: return the collective by which ranks agree on it."""
        return self._ratios.report()

    def take_rollout(self, step: int, agreed: Agreed) -> None:
        """Choose ratios by the gains that were measured."""
        waited = self._ratios.waiting
        reason = self._ratios.take_rollout(step, agreed)
        self._pending, self._took = Pending(), Took()  # clocks may have drifted since
        self._workers.forget()
        if self._ratios.waiting:
            return
        if waited:
            self._begin_round(step, reason)
            return
        for course in self._courses:
            course.choose_ratio(step, reason)

    def remeasure(self, step: int, suspicion: Suspicion, engine: Engine) -> None:
        """Measure the network anew: where it is another one there is a round, unless it was met before. Collective."""
        left = self._network
        self._network = left.remeasured(engine)
        if self._network is left:
            self._take_for_noise(step, suspicion)
            return
        self._watch.found_another()
        self._took = Took()  # that is of the other network
        latency, transfer = self._network.latency, self._network.transfer
        self.history.add(Event(step, "network", latency=latency, transfer=transfer, reason=suspicion.reason))
        for course in self._courses:
            course.leave(left, self._network, step)
        for course in self._courses:
            course.begin_on(self._network, step, suspicion.reason)

    def _take_for_noise(self, step: int, suspicion: Suspicion) -> None:
        """The network is what it was: choices stand, but for those of buckets that have long taken another time."""
        self._log_noise(step, f"{suspicion.reason}, but the network is what it was")
        self._watch.was_noise(suspicion.agreeing)
        for number in suspicion.upset:
            self._courses[number].end_round(step)
        for number, words in suspicion.drifted.items():
            self._courses[number].try_what_lasts(step, f"{words}, though the network is what it was", self._network)

    def _take_for_local(self, step: int, drifted: Mapping[int, str]) -> None:
        """What drifted did so for another reason than the network: the same, without measuring it."""
        why = "others, over the same network, take what they took"
        for number, words in drifted.items():
            self._log_noise(step, f"{words}, but {why}", number)
            self._courses[number].try_what_lasts(step, f"{words}, though {why}", self._network)

    def _log_noise(self, step: int, reason: str, number: int = -1) -> None:
        latency, transfer = self._network.latency, self._network.transfer
        self.history.add(Event(step, "noise", number, latency=latency, transfer=transfer, reason=reason))

    def predicted(self, number: int, candidate: Path) -> float:
        """Return the seconds that a bucket is expected to take by a candidate (`Course.predicted`)."""
        return self._courses[number].predicted(candidate)

    def _begin_round(self, step: int, reason: str) -> None:
        """Begin a round for all buckets."""
        for course in self._courses:
            course.begin_round(step, reason)

    def _choose_anew(self) -> None:
        """Another choice stands, or none: what is usual has to be learned; steps since the report went another way."""
        self._watch.restart()
        self._pending = Pending()

    def _in_use(self) -> list[Path | None]:
        """Return how buckets travel by the choices that stand, STAR and VAR told apart."""
        return self._workers.ways([course.chosen for course in self._courses])

    def _choose_workers(self, step: int, agreed: Agreed) -> None:
        choosers = [course.chooser for course in self._courses]
        spare_s = [chooser.spare_s() if chooser.settled else math.inf for chooser in choosers]
        before = self._in_use()
        decided = self._workers.take(agreed.told, agreed.step_s, spare_s)
        if self._in_use() != before:
            self._choose_anew()  # VAR takes a collective more
        for number, worker in decided:
            self._courses[number].take_worker(step, worker)

    def _learn(self, step: int, agreed: Agreed) -> tuple[int, ...]:
        """Take the trials of a round; return for which buckets they were for nothing, if the network has changed."""
        seconds, kernels_s = list(zip(*agreed.seconds, strict=True)), list(zip(*agreed.kernels_s, strict=True))
        upset = []
        for number, course in enumerate(self._courses):
            if not course.chooser.settled and course.learn(step, seconds[number], kernels_s[number]):
                upset.append(number)
        return tuple(upset)

    def _drift(
        self, step: int, agreed: Agreed, typical: Sequence[float], used: Sequence[Path | None]
    ) -> dict[int, str]:
        """Return in words which buckets left what was measured of them.

        Args:
            typical: seconds that each bucket took.
            used: how it travelled.
        """
        sent = [gains[-1] for gains in agreed.gains] or [math.nan] * len(self._courses)
        windows = zip(self._courses, typical, used, sent, strict=True)
        found = [course.take_window(step, seconds, way, gain) for course, seconds, way, gain in windows]
        return {number: words for number, words in enumerate(found) if words}
