"""Steering: the controller is shown what each step took, and buckets travel as it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from time import perf_counter

import torch

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.controller.controller import Controller, Suspicion
from hvd_compress.controller.course import TRIED
from hvd_compress.controller.expected import Bucket
from hvd_compress.controller.history import Event, History
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Agreed, Look
from hvd_compress.controller.sights import Workers
from hvd_compress.controller.tensorboard import TensorBoard
from hvd_compress.controller.workers import VAR
from hvd_compress.cost.kept import kept
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.decision import Decision, Request
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.pipeline import PhaseSpans, Pipeline
from hvd_compress.route import Route
from hvd_compress.schemes import Probe
from hvd_compress.settings import Settings


class Steering:
    """The controller's hands: between steps it asks the controller, in the pipeline's thread it lets ranks agree.

    Every method is called at the same place on every rank, between two steps; launched() within one.

    Attributes:
        controller: chooses for the buckets whose request leaves something open; the others are not its business.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        request: Request,
        settings: Settings,
        engine: Engine,
        network: Network,
        pipeline: Pipeline,
        watchers: Sequence[Callable[[Event], None]] = (),
    ) -> None:
        """Nothing is communicated. `watchers` are told of every event, beside those that the settings name."""
        self._request, self._pipeline = request, pipeline
        self._agreeing: Callable[[], Agreed] | None = None  # waits for an agreement that is under way
        self._since = 0  # the step behind whose exchanges it was launched
        self._ended_s = perf_counter()
        self._stands = False  # whether nothing can change until ranks have agreed again
        self._watched: tuple[bool, ...] = ()  # by bucket: whether AR-Topk says in the coming step what it saw
        self._routes, buckets = [], []
        for route in routes:
            layout = route.bucket.layout
            found = ways(request, layout, engine.capabilities)
            if layout.numel and (len(found) > 1 or (found and workers_open(request))):  # else nothing is open
                self._routes.append(route)
                buckets.append(bucket_of(layout, request.compressor, found))
        tells = engine.rank == 0
        self._board = TensorBoard(settings.tensorboard) if settings.tensorboard is not None and tells else None
        told: list[Callable[[Event], None]] = [*watchers]
        if self._board is not None:
            told.append(self._board)
        history = History(settings.log if tells else None, told, [route.number for route in self._routes])
        workers = Workers([workers_open(request) for _ in buckets], engine.world_size)
        self.controller = Controller(buckets, network, Policy(), history, request.ratio, workers)
        self.follow()

    def after(self, step: int, spans: Sequence[PhaseSpans]) -> None:
        """Show the controller what the step took, by number of the bucket, and do in the next one what it says."""
        now = perf_counter()
        step_s, self._ended_s = now - self._ended_s, now
        controller, routes = self.controller, self._routes
        controller.saw([route.sight(spans[route.number]) for route in routes])
        controller.hear(reduce(or_, (route.report.flags for route in routes), 0))
        controller.record([route.timing(spans[route.number]) for route in routes], step_s, _seen(routes))
        if controller.due and not controller.settled:
            self._agree(step)
        if not controller.settled or step > self._since:
            self.wait(step)
        if controller.alarm:
            self.wait(step)  # for what is under way, and perhaps says the same
            if suspicion := controller.alarm:
                self._measure(step, suspicion)
        if self._stands:
            self._probe()
        else:
            self.follow()

    def launched(self, step: int) -> None:
        """All exchanges of a step are launched: behind the last one ranks are in step, and may agree while they go on.

        Nothing depends on it yet. What they agree on is taken after the next step, which hides what it takes.
        """
        if self._agreeing is None and self.controller.due:
            self._agree(step)

    def _agree(self, step: int) -> None:
        self._agreeing = self._pipeline.begin(self.controller.report(), f"step {step}, comparing times")
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
        self._pipeline.begin(measure, f"after step {step}, measuring the network")()
        self._stands, self._ended_s = False, perf_counter()

    def roll_out(self, ratio: float) -> None:
        """Send another ratio in the steps that come, which are to be taken back."""
        self.controller.roll_out(ratio)
        self.follow()

    def compare(self, step: int) -> None:
        """All ratios were rolled out: let ranks agree on what they gained, and do what follows."""
        agreed = self._pipeline.begin(self.controller.report_rollout(), f"after step {step}, comparing rollouts")()
        self.controller.take_rollout(step, agreed)
        self.resume()

    def resume(self) -> None:
        """After steps without steering: they belong to no step."""
        self._ended_s = perf_counter()
        self.follow()

    def follow(self) -> None:
        """Let buckets travel as the controller says, from the coming step on."""
        controller, compressor = self.controller, self._request.compressor
        chosen = zip(self._routes, controller.candidates(), controller.ratios(), controller.reasons(), strict=True)
        for route, candidate, ratio, reason in chosen:
            route.decide(steered(route.decision, compressor.with_ratio(ratio), candidate, reason))
        self._watched = controller.watched()
        self._stands = controller.settled
        self._probe()

    def _probe(self) -> None:
        """Say what is to be known of the exchanges of the coming step."""
        flags, ratios = self.controller.note, self.controller.looking
        for route, watched in zip(self._routes, self._watched, strict=True):
            numel = route.bucket.layout.numel
            ks = None if ratios is None else tuple(kept(numel, ratio) for ratio in ratios)
            route.probe = Probe(flags, watched, ks)

    def close(self) -> None:
        """Let what is written be complete."""
        if self._board is not None:
            self._board.close()


def is_adaptive(request: Request) -> bool:
    """Whether the request leaves anything of how a bucket travels to the controller."""
    open_ = len(schemes.meanings(request.scheme)) > 1 or "auto" in (request.scheme, request.algorithm)
    return request.compressor.has_ratio and open_


def workers_open(request: Request) -> bool:
    """Whether the choice between STAR and VAR is the controller's, wherever AR-Topk is used."""
    return request.compressor.has_ratio and (request.scheme == "auto" or len(schemes.meanings(request.scheme)) > 1)


def ways(request: Request, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
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


def steered(before: Decision, compressor: Compressor, path: Path, reason: str) -> Decision:
    """Return the decision that sends a bucket as `path` says, or else as before."""
    return replace(before, compressor=carried(compressor, path), path=path, reason=reason, is_trial=reason == TRIED)


def _seen(routes: Sequence[Route]) -> Look | None:
    """Return what was seen of the step that is over, if it was looked at; the host waits for a GPU then."""
    samples = [route.report.sample for route in routes]
    seen = [sample for sample in samples if sample is not None]
    if not seen:
        return None
    return Look(tuple(tuple(sample.gains()) for sample in seen), sum(s.before_s + s.after_s for s in seen))
