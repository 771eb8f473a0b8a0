"""The adaptive policy: the controller is shown what each step took, and buckets travel as it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from importlib.metadata import version
from operator import or_
from time import perf_counter

import torch

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.controller.controller import Controller, Suspicion
from hvd_compress.controller.course import TRIED
from hvd_compress.controller.expected import Bucket
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Agreed, Look, Timing
from hvd_compress.controller.rollout import same_steps
from hvd_compress.controller.sights import Sight, Workers
from hvd_compress.controller.workers import VAR
from hvd_compress.cost.kept import kept
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.cost.store import obtain
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event, History
from hvd_compress.policies.base import BucketMetrics, StepMoments
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.schemes import Probe
from hvd_compress.settings import Settings


class AdaptivePolicy(FixedPolicy):
    """The controller's hands: between steps it asks the controller, in the engine's thread it lets ranks agree.

    It begins with the decisions of a FixedPolicy.

    Attributes:
        controller: chooses for the buckets whose request leaves something open; the others are not its business.
    """

    def __init__(self, request: Request, settings: Settings) -> None:
        super().__init__(request)
        self._settings = settings
        self._controller: Controller | None = None
        self._watchers: list[Callable[[Event], None]] = []
        self._network: Network
        self._launch: Launch
        self._agreeing: Callable[[], Agreed] | None = None  # waits for an agreement that is under way
        self._since = 0  # the step behind whose exchanges it was launched
        self._ended_s = perf_counter()
        self._stands = False  # whether nothing can change until ranks have agreed again
        self._watched: tuple[bool, ...] = ()  # by bucket: whether AR-Topk says in the coming step what it saw
        self._numbers: list[int] = []  # of the controller's buckets, among all
        self._layouts: list[Layout] = []
        self._first: Sequence[Decision] = ()  # of all buckets
        self._history: History | None = None  # of all controllers, by the numbers of the last one's buckets

    @property
    def controller(self) -> Controller:
        assert self._controller is not None
        return self._controller

    @property
    def tells_of(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(self._numbers)

    def watch(self, watcher: Callable[[Event], None]) -> None:
        self._watchers.append(watcher)

    def fingerprint(self) -> Mapping[str, str]:
        goal = self._request.ratio
        # Each rank searches by itself.
        return {"the version of pymoo": version("pymoo")} if goal is not None and goal.solver == "nsga2" else {}

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        engine.place = f"rank {engine.rank}, measuring the network, which HVD_COMPRESS_ADAPT=0 leaves out"
        self._network = Network(obtain(engine, self._settings.calibration_s)[0])

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        decisions, self._launch = super().setup(step, buckets, launch), launch
        self._begin(buckets, decisions)
        return decisions

    def _begin(self, buckets: Sequence[Layout], decisions: Sequence[Decision]) -> None:
        """Let a controller choose for these buckets, from the beginning."""
        if self._agreeing is not None:
            self._agreeing()  # about other buckets
            self._agreeing = None
        request, self._layouts, known = self._request, [], []
        self._numbers.clear()
        self._first = decisions
        for number, layout in enumerate(buckets):
            found = open_paths(request, layout, self.capabilities)
            if layout.numel and (len(found) > 1 or (found and workers_open(request))):  # else nothing is open
                self._numbers.append(number)
                self._layouts.append(layout)
                known.append(bucket_of(layout, request.compressor, found))
        if self._history is None:
            self._history = History(watchers=self._watchers, numbers=self._numbers)
        history = self._history
        workers = Workers([workers_open(request) for _ in known], self.world_size)
        self._controller = Controller(known, self._network, Policy(), history, request.ratio, workers)
        self._stands = False

    def observe(self, step: int, metrics: Sequence[BucketMetrics], moments: StepMoments) -> None:
        """Show the controller what the step took, and take what follows from it."""
        now = perf_counter()
        step_s, self._ended_s = now - self._ended_s, now
        controller, own = self.controller, [metrics[number] for number in self._numbers]
        controller.saw([sight(of) for of in own])
        controller.hear(reduce(or_, (of.report.flags for of in own), 0))
        controller.record([timing(of) for of in own], step_s, _seen(own))
        if controller.due and not controller.settled:
            self._agree(step)
        if not controller.settled or step > self._since:
            self.wait(step)
        if controller.alarm:
            self.wait(step)  # for what is under way, and perhaps says the same
            if suspicion := controller.alarm:
                self._measure(step, suspicion)

    def launched(self, step: int) -> None:
        """Behind the last exchange ranks are in step, and may agree while it goes on.

        Nothing depends on it yet. What they agree on is taken after the next step, which hides what it takes.
        """
        if self._agreeing is None and self.controller.due:
            self._agree(step)

    def _agree(self, step: int) -> None:
        self._agreeing = self._launch(self.controller.report(), f"step {step}, comparing times")
        self._since = step

    def wait(self, step: int) -> None:
        """Take what ranks agree on, if an agreement is under way."""
        if self._agreeing is None:
            return
        wait, self._agreeing, self._stands = self._agreeing, None, False
        suspicion = self.controller.take(step, wait())
        if suspicion:
            self._measure(step, suspicion)
        self._ended_s = perf_counter()  # what ranks waited for belongs to no step

    def _measure(self, step: int, suspicion: Suspicion) -> None:
        """Let ranks measure the network."""
        measure = partial(self.controller.remeasure, step, suspicion)
        self._launch(measure, f"after step {step}, measuring the network")()
        self._stands, self._ended_s = False, perf_counter()

    def decide(self, step: int) -> Mapping[int, Decision]:
        if self._stands:
            return {}
        controller, compressor = self.controller, self._request.compressor
        chosen = zip(self._numbers, controller.candidates(), controller.ratios(), controller.reasons(), strict=True)
        decisions = {
            number: along(self._first[number], compressor.with_ratio(ratio), path, reason)
            for number, path, ratio, reason in chosen
        }
        self._watched = controller.watched()
        self._stands = controller.settled
        return decisions

    def probes(self, step: int) -> Mapping[int, Probe]:
        flags, ratios = self.controller.note, self.controller.looking
        found = {}
        for number, layout, watched in zip(self._numbers, self._layouts, self._watched, strict=True):
            ks = None if ratios is None else tuple(kept(layout.numel, ratio) for ratio in ratios)
            found[number] = Probe(flags, watched, ks)
        return found

    @property
    def rollout_due(self) -> str:  # type: ignore[override]
        return self.controller.rollout_due

    @property
    def rollout_ratios(self) -> tuple[float, ...]:
        """The ratios that a rollout compares."""
        assert self._request.ratio is not None
        return self._request.ratio.ratios

    def begin_rollout(self, step: int, steps: int) -> None:
        """Before steps that are taken back: check that every rank takes as many.

        Raises ConfigError where they differ, on every rank alike.
        """
        self.wait(step)
        self._launch(partial(same_steps, steps), f"step {step}, comparing the steps of a rollout")()

    def roll_out(self, ratio: float) -> None:
        """Send another ratio in the steps that come, which are to be taken back."""
        self.controller.roll_out(ratio)
        self._stands = False

    def compare(self, step: int) -> None:
        """All ratios were rolled out: let ranks agree on what they gained, and do what follows."""
        agreed = self._launch(self.controller.report_rollout(), f"after step {step}, comparing rollouts")()
        self.controller.take_rollout(step, agreed)
        self.resume()

    def resume(self) -> None:
        self._ended_s, self._stands = perf_counter(), False


def is_adaptive(request: Request) -> bool:
    """Whether the request leaves anything of how a bucket travels to the controller."""
    open_ = len(schemes.meanings(request.scheme)) > 1 or "auto" in (request.scheme, request.algorithm)
    return request.compressor.has_ratio and open_ and not schemes.by_name(request.scheme)


def workers_open(request: Request) -> bool:
    """Whether the choice between STAR and VAR is the controller's, wherever AR-Topk is used."""
    return request.compressor.has_ratio and (request.scheme == "auto" or len(schemes.meanings(request.scheme)) > 1)


def open_paths(request: Request, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
    """Return every path by which an adaptive request can send a bucket; none for what is not compressed.

    Where STAR and VAR are open, "star" stands for both. A named algorithm leaves an all-gather's open: it has no
    allreduce.
    """
    if layout.dtype == torch.float64:
        return ()
    sparse = schemes.variants(request.compressor, layout, can)
    if request.scheme == "auto":
        dense = [path for path in schemes.variants(Cast(), layout, can) if schemes.verb_of(path.scheme) == "allreduce"]
        found = [*dense, *(path for path in sparse if path.scheme != VAR)]
    else:
        name = schemes.meanings(request.scheme)[0]
        found = [path for path in sparse if path.scheme == name]
    verb, named = request.verb, request.algorithm
    return tuple(p for p in found if named in ("auto", p.algorithm) or schemes.verb_of(p.scheme) != verb)


def bucket_of(layout: Layout, compressor: Compressor, found: tuple[Path, ...]) -> Bucket:
    """Return what the controller knows of a bucket."""

    def stages(path: Path, ratio: float, world_size: int) -> tuple[Stage, ...]:
        return schemes.stages(carried(compressor.with_ratio(ratio), path), path, layout, world_size)

    return Bucket(layout.numel, compressor.sent_ratio, found, stages)


def carried(compressor: Compressor, path: Path) -> Compressor:
    """Return what a path sends: the whole gradient where its scheme does not carry the compressor."""
    return compressor if schemes.carries(compressor, path) else Cast()


def along(before: Decision, compressor: Compressor, path: Path, reason: str) -> Decision:
    """Return the decision that sends a bucket as `path` says, or else as before."""
    return replace(before, compressor=carried(compressor, path), path=path, reason=reason, is_trial=reason == TRIED)


def timing(of: BucketMetrics) -> Timing:
    """Return what the exchange took, without what it took to look at it."""
    sample, spans = of.report.sample, of.spans
    before_s, after_s = (sample.before_s, sample.after_s) if sample is not None else (0.0, 0.0)
    compress_s, decompress_s = spans.compress_s - before_s, spans.decompress_s - after_s
    return Timing(compress_s, spans.communicate_s, decompress_s, spans.communicate[0], of.report.on_critical_path)


def sight(of: BucketMetrics) -> Sight | None:
    """Return what this rank saw of the step that is over; the host may wait for a GPU here."""
    stats, residual = of.report.root_stats, of.state.residual
    if stats is None or residual is None:
        return None
    left = float(residual.square_norm())
    return Sight(stats.root, float(stats.sent), left, timing(of).seconds)


def _seen(metrics: Sequence[BucketMetrics]) -> Look | None:
    """Return what was seen of the step that is over, if it was looked at; the host waits for a GPU then."""
    seen = [sample for of in metrics if (sample := of.report.sample) is not None]
    if not seen:
        return None
    return Look(tuple(tuple(sample.gains()) for sample in seen), sum(s.before_s + s.after_s for s in seen))
