"""The policy of Compression.flexible(): it looks at gains and times, and chooses ratios and paths between steps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any, ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective, Probe
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.compressors.sparsifier import kept_of
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError
from hvd_compress.events.history import Event, History
from hvd_compress.events.recorder import choice
from hvd_compress.papers.flexible.exchanges import exchange_times
from hvd_compress.papers.flexible.ratio import BucketRatio
from hvd_compress.papers.flexible.resumed import Ratios, loaded, saved
from hvd_compress.papers.flexible.rollout import HOW, Rollout, roll_out
from hvd_compress.papers.flexible.settings import RatioSettings
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.policies.open_paths import open_collectives, unforced
from hvd_compress.policies.prices import Prices, measure
from hvd_compress.policies.resumed import decided
from hvd_compress.policies.roots import STAR, VAR, Roots
from hvd_compress.policies.telling import TellingPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.services.agreement import Agreed, gathered, kernels_s, phases, window
from hvd_compress.services.base import BucketMetrics, Rollouts
from hvd_compress.services.watch import Watch
from hvd_compress.settings import Settings

LOOK_STEPS = 8
"""Gains are looked at as often, at most: a look takes as long as a compression."""
SHARE = 0.1
"""Of all steps, how many may be taken for rollouts, after the first."""


@dataclass
class Trial:
    """What this rank measured with one ratio while a rollout runs: by step and bucket, kernel seconds and gain."""

    ratio: float
    rows: list[list[tuple[float, float]]] = field(default_factory=list)

    def means(self) -> list[float]:
        """Return kernel seconds and gain of each bucket, in turns; NaN where no step had one."""
        columns = [column for bucket in zip(*self.rows, strict=True) for column in zip(*bucket, strict=True)]
        known = [[value for value in column if math.isfinite(value)] for column in columns]
        return [fmean(column) if column else math.nan for column in known]


@dataclass(frozen=True)
class Seen:
    """What this rank measured of a step: by what buckets travelled, the phases of each, and gains where it looked."""

    used: Mapping[int, tuple[Compressor, Path]]
    phases: Sequence[float]
    look: Sequence[float]


class FlexiblePolicy(TellingPolicy):
    """Chooses ratio, collective and algorithms of each bucket. Where nothing may be measured: the ratio in the middle.

    Calls are priced by alpha-beta lines through what was measured of them (Eq. 4), kernels by what they took.
    Gains are looked at every LOOK_STEPS steps, or more where steps are short; where that of the ratio in use has moved,
    the bucket's ratio is chosen anew (Eq. 6). Where exchanges take another time, the network is measured again, and all
    are.

    Attributes:
        due: why steps are to be rolled out now, or nothing.
    """

    def __init__(self, request: Request, asked: RatioSettings) -> None:
        super().__init__()
        self._request = replace(request, compressor=request.compressor.with_ratio(asked.start))
        self._asked, self._fixed = asked, FixedPolicy(self._request)
        self._prices: Prices | None = None
        self._parameters: Sequence[Layout] = ()
        self._buckets: dict[int, BucketRatio] = {}  # that have something to choose, by number
        self._roots = Roots((), 1)
        self._layouts: Sequence[Layout] = ()
        self._first: Sequence[Decision] = ()
        self._used: dict[int, tuple[Compressor, Path]] = {}  # by what buckets travel in the step under way
        self._launch: Launch
        self._watch = Watch(self, self._history)
        self.services = (self._watch, _Rollouts(self))
        self._step_s = 0.0
        self._stands = True
        self._trials: list[Trial] = []
        self._no_rollout_before = 0
        self._resumed: Ratios | None = None
        self.due = "training begins" if asked.gain == "rollout" else ""
        self.ratios: Sequence[float] = asked.ratios

    @property
    def history(self) -> History | None:
        return self._history if self._buckets else None

    @property
    def settled(self) -> bool:
        return all(bucket.gains for bucket in self._buckets.values())

    @property
    def wants_rollout(self) -> bool:
        return bool(self.due and self._buckets)

    def chosen(self) -> str:
        if not self._buckets or not self.settled or self._trials or not self._step_s:
            return ""
        decisions = [self._decision(n) if n in self._buckets else each for n, each in enumerate(self._first)]
        gains = {number: bucket.gains for number, bucket in self._buckets.items()}
        return saved(decisions, self._layouts, self.world_size, gains, self._step_s)

    def go_on(self, chosen: str) -> bool:
        self._resumed = loaded(chosen, len(self.ratios))
        return self._resumed is not None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        self._fixed.prepare(engine, parameters)
        self._parameters = [each for each in parameters if self._collectives(each)]
        self._measure(engine)

    def _measure(self, engine: Engine) -> None:
        """Collective, in the engine's thread."""
        if self.measuring_s is not None and self._parameters:
            ends = self._parameters[0], max(self._parameters, key=_numel)
            ways = [(of, [*self._collectives(of), *unforced(Cast(), of, self.capabilities)[:1]]) for of in ends]
            self._prices = measure(engine, [([[each] for each in found], of) for of, found in ways], self.measuring_s)

    def _dense(self, layout: Layout) -> Path | None:
        """Return by which path a bucket may travel without compression."""
        found = unforced(Cast(), layout, self.capabilities)
        return found[0].path if found else None

    def _collectives(self, layout: Layout) -> list[Collective]:
        """Return what may carry a bucket: all-gather and AR-Topk, by each algorithm.

        "star" stands for VAR, too. The broadcast of indices is the engine's own. Formulas leave none out: what they
        call slower, such as a ring, may be the fastest (benchmarks/results/controller-grid.md).
        """
        if not layout.numel or layout.sparse or layout.dtype == torch.float64:
            return []
        found = open_collectives(self._request, layout, self.capabilities)
        return [collective for collective in found if collective.path.broadcast == "auto"]

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._watch.begin(launch)
        self._watch.alarm.forget()
        self._layouts, self._launch = buckets, launch
        self._first = self._fixed.setup(step, buckets, launch)
        if self.world_size == 1:
            alone = "no compression pays with one rank"
            self._first = [
                replace(each, compressor=Cast(), path=dense, reason=alone) if (dense := self._dense(of)) else each
                for each, of in zip(self._first, buckets, strict=True)
            ]
        self._buckets = {}
        for number, layout in enumerate(buckets) if self._prices is not None else ():
            if paths := [each.path for each in self._collectives(layout)]:
                made = BucketRatio(layout, self._request.compressor, paths, self._dense(layout), self._asked)
                self._buckets[number] = made
        self._roots = Roots(self._buckets, self.world_size)
        self._first = [replace(each, is_trial=number in self._buckets) for number, each in enumerate(self._first)]
        if self._resumed is not None and self._take_up(self._resumed):
            self._step_s, self.due = self._resumed.step_s, ""
            self._first = [self._decision(n) if n in self._buckets else each for n, each in enumerate(self._first)]
        self._used = {number: (self._first[number].compressor, self._first[number].path) for number in self._buckets}
        self._stands = True
        return self._first

    def _take_up(self, resumed: Ratios) -> bool:
        """Let buckets travel as before a checkpoint; not where buckets, request or engine are others."""
        decisions = decided(resumed.plan, self._layouts, self.world_size)
        if decisions is None or resumed.gains.keys() != self._buckets.keys():
            return False
        takes = {n: bucket.takes(decisions[n].compressor, decisions[n].path) for n, bucket in self._buckets.items()}
        if not all(takes.values()):
            return False
        for number, bucket in self._buckets.items():
            bucket.go_on(decisions[number].compressor, decisions[number].path, resumed.gains[number])
        return True

    @property
    def every(self) -> int:
        if not self._buckets:
            return 0
        return max(LOOK_STEPS, window(self._step_s)) if self.settled else 1

    @property
    def is_awaited(self) -> bool:
        return not self.settled

    @property
    def _width(self) -> int:
        """Figures of a bucket's look: the gain of each ratio that is read, and of what was sent."""
        return 1 + (len(self.ratios) if self._asked.gain == "curve" else 0)

    def decide(self, step: int) -> Mapping[int, Decision]:
        if self._stands:
            return {}
        self._stands = not self._trials
        decisions = {number: self._decision(number) for number in self._buckets}
        self._used = {number: (each.compressor, each.path) for number, each in decisions.items()}
        return decisions

    def _way(self, number: int) -> tuple[Compressor, Path]:
        """Return by what a bucket travels in the coming step."""
        bucket, compressor, path = self._buckets[number], self._buckets[number].compressor, self._buckets[number].path
        if self._trials:
            assert self._prices is not None
            ratio = self._trials[-1].ratio
            compressor, path = self._request.compressor.with_ratio(ratio), bucket.fastest(ratio, self._prices)[-1]
        return compressor, path if self._trials else self._roots.path(number, path)

    def _decision(self, number: int) -> Decision:
        compressor, path = self._way(number)
        reasons = (self._buckets[number].reason, self._roots.reason(number, path))
        reason = "a rollout" if self._trials else "; ".join(filter(None, reasons))
        is_trial = bool(self._trials) or not self._buckets[number].gains
        return replace(self._first[number], compressor=compressor, path=path, reason=reason, is_trial=is_trial)

    def dropped(self, step: int) -> list[int]:
        """Those that travel without compression."""
        return [number for number, (compressor, _) in self._used.items() if not compressor.compresses]

    def probes(self, step: int) -> Mapping[int, Probe]:
        looks = self._watch.recorded + 1 >= self.every or bool(self._trials)
        ratios = self.ratios if self._asked.gain == "curve" else ()
        found = {}
        for number in self._buckets:
            ks = tuple(kept_of(ratio, self._layouts[number].numel) for ratio in ratios)
            found[number] = Probe(self._used[number][1].collective in (STAR, VAR), ks if looks else None)
        return found

    def note(self, metrics: Sequence[BucketMetrics]) -> Seen | None:
        own = {number: metrics[number] for number in self._buckets}
        if self._trials:
            self._trials[-1].rows.append([(kernels_s(of), _sent(of)) for of in own.values()])
            return None
        if self.due and not self.settled:
            return None  # until a rollout nothing can be chosen
        self._roots.see(metrics)
        samples = [of.report.sample for of in own.values()]
        look = []
        if all(sample is not None for sample in samples):
            look = [g for s, of in zip(samples, own.values(), strict=True) for g in (*s.gains(), _sent(of))]  # type: ignore[union-attr]
        return Seen(self._used, [figure for of in own.values() for figure in phases(of)], look)

    def tell(self, notes: Sequence[Seen]) -> Sequence[float]:
        """Return the last gains, the phases of each step, and what the choice of roots needs."""
        looks = [seen.look for seen in notes if seen.look] or [[math.nan] * (self._width * len(self._buckets))]
        return [*looks[-1], *(figure for seen in notes for figure in seen.phases), *self._roots.tell()]

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[Seen]) -> float | None:
        self._step_s = median([times.whole_s for times in agreed.steps])
        width, count = self._width, len(self._buckets)
        looked, timed = width * count, (width + 4 * len(agreed.steps)) * count
        exchanges = exchange_times([rank[looked:timed] for rank in agreed.told], count)
        for place, (number, bucket) in enumerate(self._buckets.items()):
            for seen, times in zip(notes, exchanges, strict=True):
                bucket.kernels.note(*seen.used[number], times[place].kernels_s)
        self._learn(step, [rank[:looked] for rank in agreed.told])
        for event in self._roots.take(step, [rank[timed:] for rank in agreed.told]):
            self._history.add(event)
            self._stands = False
        if not self.settled or not self._stands:
            self._watch.alarm.forget()  # exchanges will take another time
            return None
        exchanging_s: float = sum(median([each.seconds for each in column]) for column in zip(*exchanges, strict=True))
        return exchanging_s

    def _learn(self, step: int, ranks: Sequence[Sequence[float]]) -> None:
        """Take the gains that all ranks have looked at, by rank, and choose where they have moved."""
        knew, width = self.settled, self._width
        for place, bucket in enumerate(self._buckets.values()):
            looks = [rank[width * place : width * (place + 1)] for rank in ranks]
            gains = [fmean(column) for column in zip(*looks, strict=True)]
            if self._asked.gain == "rollout":
                bucket.watch(gains[-1])
            elif bucket.compressor.compresses or not bucket.gains:  # else nothing is left over: gains are others
                bucket.learn(gains[:-1])
        moved = [number for number, bucket in self._buckets.items() if bucket.moved]
        if self._asked.gain == "rollout":
            if moved and step >= self._no_rollout_before:
                self.due = self.due or f"the gain of bucket {moved[0]} has moved"
            return
        for number in moved if knew else self._buckets:
            if self.settled:
                self._choose(step, number, "the gain has moved" if knew else "gains are known")

    def on_alarm(self, step: int) -> None:
        """Measure the network, and choose all anew."""
        self._watch.measure(self._measure, step, self.measuring_s)
        for number in self._buckets:
            self._choose(step, number, "another network")

    def _choose(self, step: int, number: int, reason: str) -> None:
        bucket, self._resumed = self._buckets[number], None
        assert self._prices is not None
        bucket.choose(self._prices)
        ratio, why = bucket.compressor.sent_ratio, f"{reason}: {bucket.reason}"
        taken, gain = bucket.expected_s, bucket.known_gain
        self._history.add(Event(step, "ratio", number, ratio=ratio, gain=gain, predicted_s=taken, reason=why))
        self._history.add(choice(step, number, self._decision(number)))
        self._stands = False
        self._watch.alarm.forget()

    @property
    def tells_of(self) -> Sequence[int]:  # type: ignore[override]
        return tuple(self._buckets)

    def begin(self, step: int, steps: int) -> None:
        self._watch.drop()
        ranks = self._launch(partial(gathered, [float(steps)]), f"step {step}, comparing the steps of a rollout")()
        asked = [int(steps) for (steps,) in ranks]
        if len(set(asked)) > 1:
            raise ConfigError(f"rollout(steps=...) must be the same on all ranks, and is, by rank, {asked}")

    def try_ratio(self, ratio: float) -> None:
        self._trials.append(Trial(ratio))
        self._stands = False

    def compare(self, step: int) -> None:
        mine = [figure for trial in self._trials for figure in trial.means()]
        ranks = self._launch(partial(gathered, mine), f"after step {step}, comparing rollouts")()
        known = iter(zip(*ranks, strict=True))
        table = [[(max(next(known)), fmean(next(known))) for _ in self._buckets] for _ in self._trials]
        assert self._prices is not None
        for place, (number, bucket) in enumerate(self._buckets.items()):
            travelled = [bucket.fastest(trial.ratio, self._prices)[-1] for trial in self._trials]
            for trial, path, row in zip(self._trials, travelled, table, strict=True):
                kernels_s, gain = row[place]
                bucket.kernels.note(self._request.compressor.with_ratio(trial.ratio), path, kernels_s)
                event = Event(step, "rollout", number, "", trial.ratio, gain=gain, reason=self.due)
                self._history.add(event)
            bucket.learn([row[place][1] for row in table], weight=1.0)
        taken, reason = sum(len(trial.rows) for trial in self._trials), self.due
        self._trials, self.due, self._no_rollout_before = [], "", step + round(taken / SHARE)
        for number, bucket in self._buckets.items():
            if bucket.gains:
                self._choose(step, number, reason)
            else:
                self.due = reason
        self._stands = self._watch.is_first = False


class _Rollouts(Rollouts):
    """What a policy wants of steps that are taken back."""

    how = HOW

    def __init__(self, policy: FlexiblePolicy) -> None:
        self._policy: FlexiblePolicy = weakref.proxy(policy)  # which has this service

    @property
    def wanted(self) -> bool:
        return self._policy.wants_rollout

    def roll_out(self, session: Any, optimizer: Any, step: Any, model: Any, data: Any, steps: Any) -> None:
        others = tuple(data) if isinstance(data, (list, tuple)) else (data,)
        roll_out(self._policy, session, optimizer, Rollout(step, model, others, steps))


def _numel(layout: Layout) -> int:
    return layout.numel


def _sent(of: BucketMetrics) -> float:
    sent = of.report.sent
    return math.nan if sent is None else sent


@dataclass(frozen=True)
class Flexible(RatioSettings, PolicySettings):
    """What Compression.flexible() was asked for."""

    takes: ClassVar[tuple[str, ...]] = ("engine", "device")

    @property
    def needs_optimizer(self) -> str:
        return "gain='rollout' takes training steps back: use gain='curve'" if self.gain == "rollout" else ""

    def make(self, request: Request, settings: Settings) -> FlexiblePolicy:
        return FlexiblePolicy(request, self)
