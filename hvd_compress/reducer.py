"""The reducer: takes gradients as they become ready and gives back their reduced values.

It knows parameters, buckets and the pipeline, and neither Horovod nor torch.optim, so that every front end can use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from time import perf_counter

import torch

from hvd_compress import __version__, native
from hvd_compress.buckets.bucket import Bucket
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot, plan_buckets
from hvd_compress.buckets.under_way import stand_in
from hvd_compress.compressors import Cast
from hvd_compress.controller.controller import Controller
from hvd_compress.controller.network import Network
from hvd_compress.controller.rollout import same_steps
from hvd_compress.cost import wire
from hvd_compress.cost.store import obtain
from hvd_compress.decision import Decision, Request, compression_device, decide
from hvd_compress.devices import Lane, lane_for
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import UnsupportedError, UsageError, located, received
from hvd_compress.feedback.states import States
from hvd_compress.handshake import Agreement, Offer, agree
from hvd_compress.native.cuda import kernels as cuda_kernels
from hvd_compress.pipeline import Exchanged, Pipeline, StepReport
from hvd_compress.route import Route
from hvd_compress.schemes.sparse_rows import SparseRows
from hvd_compress.settings import Settings
from hvd_compress.steering import Steering, is_adaptive
from hvd_compress.timeline.trace import Timeline, TraceRecord

log = logging.getLogger("hvd_compress")


@dataclass(frozen=True)
class ReduceOptions:
    """How gradients are summed.

    Attributes:
        average: divide the sum by the number of ranks.
        predivide_factor: gradients are divided by it before the sum and multiplied by it after.
        groups: parameter names that must travel together, or a number of groups to make of all.
        sparse_as_dense: exchange sparse gradients as dense ones.
        backward_passes_per_step: how many passes the caller sums before a gradient is ready; only compared.
    """

    average: bool = True
    predivide_factor: float = 1.0
    groups: tuple[tuple[str, ...], ...] | int = ()
    sparse_as_dense: bool = False
    backward_passes_per_step: int = 1


LaneMaker = Callable[[torch.device, str, Sequence[str]], Lane]
"""Takes where gradients lie, the kind of device that compresses, and the kinds whose memory the engine takes."""


class Reducer:
    """Reduces the gradients of named parameters over the ranks of an engine, one step after the other.

    In the first step it watches in which order gradients become ready; at its end all ranks shake hands, take over the
    order of rank 0, and cut it into buckets. From then on a bucket leaves as soon as it is full.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        connect: Callable[[], Engine],
        options: ReduceOptions,
        settings: Settings,
        make_lane: LaneMaker = lane_for,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: by name, in an order that is the same on all ranks.
            request: what the user asked for.
            connect: creates the engine; called once, in the communication thread, at the end of the first step.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.

        Raises:
            ConfigError: parameters are not where the request wants them to be.
            UnsupportedError: they are on a GPU, and there are no kernels for it.
        """
        self._parameters, self._request, self._connect = dict(parameters), request, connect
        self._options, self._settings, self._make_lane = options, settings, make_lane
        _check_devices(self._parameters, request)
        places = _places(self._parameters.values())
        self._slots = {n: Slot(tuple(p.shape), p.dtype, places[p.device]) for n, p in parameters.items()}
        self._pipeline = Pipeline(settings.timeout_s, arrivals)
        self._ready: list[str] = []
        self._held: dict[str, torch.Tensor] = {}  # gradients of the first step, before there are buckets
        self._routes: list[Route] = []
        self._route_of: dict[str, Route] = {}
        self._sparse: list[str] = []
        self._sparse_lanes: dict[str, Lane] = {}
        self._was_sparse: set[str] = set()
        self._planned = False
        self.states = States()
        self.step = 0
        self.last_step: StepReport | None = None
        self._network: Network | None = None
        self.steering: Steering | None = None
        self._timeline: Timeline | None = None
        self._first_ready_s: float | None = None
        self._returned_s = perf_counter()
        self._told_nonfinite = False

    @property
    def controller(self) -> Controller | None:
        """What chooses how buckets travel; None before the first exchange, and where all is fixed."""
        return self.steering.controller if self.steering is not None else None

    @property
    def decisions(self) -> dict[tuple[str, ...], Decision]:
        """What was decided for each bucket, by the names of its parameters; empty before the first exchange."""
        return {route.bucket.layout.names: route.decision for route in self._routes}

    def ready(self, name: str) -> None:
        """The gradient of a parameter is final for this step. Call it at most once a step and parameter."""
        parameter = self._parameters[name]
        if self._first_ready_s is None:
            self._first_ready_s = perf_counter()
        if parameter.grad is not None and parameter.grad.is_sparse:
            self._meet_sparse(name)
        if not self._planned:
            self._ready.append(name)
            if parameter.grad is not None:
                self._held[name] = parameter.grad
                parameter.grad = stand_in(parameter)
        elif name in self._route_of:
            route = self._route_of[name]
            full = route.bucket.arrive(name)
            route.lane.arrived()
            if full:
                self._launch(route)

    def finish(self) -> StepReport:
        """Exchange what has not left yet, wait, and put the results into the parameters' gradients.

        A parameter without a gradient counts as zero and gets the others' result, unless it is frozen.

        Raises:
            ConfigError: in the first step, if ranks differ.
            CommunicationError, PayloadError: the exchange failed. Residuals are as they were before the step.
        """
        start = perf_counter()
        try:
            if not self._planned:
                self._let_go()
                self._set_up()
            for route in self._routes:
                if not route.launched:
                    for name in route.bucket.missing:
                        self._check_dense(name)
                        route.bucket.adopt(name)
                    self._launch(route)
            rows = self._launch_sparse()
            if self.steering is not None:
                self.steering.launched(self.step)
            exchanged = self._pipeline.finish()
            with located(f"rank {self._engine.rank}, step {self.step}"), received():
                native.check_pending()  # what a GPU's kernels found in the payloads of other ranks
            self._take_results(exchanged.finite, rows)
            self._trace(exchanged, start)
            if self.steering is not None:
                self.steering.after(self.step, exchanged.spans)
            for route in self._routes:
                route.forget()
        except BaseException as error:  # an interrupt, too: a step that was taken by halves must not go on
            self._pipeline.fail(error)
            native.forget_pending()  # it belongs to this step, and must not fail that of another optimizer
            raise
        if not exchanged.finite:
            self._note_nonfinite(exchanged.nonfinite)
        self.last_step = StepReport(
            step=self.step,
            compress_s=exchanged.seconds["encode"],
            communicate_s=exchanged.seconds["communicate"],
            decompress_s=exchanged.seconds["decode"],
            wait_s=perf_counter() - start,
            sent_bytes=exchanged.sent_bytes,
            dense_bytes=self._dense_bytes(),
            finite=exchanged.finite,
            bus_bytes=exchanged.bus_bytes,
            nonfinite_steps=self._nonfinite_steps + (not exchanged.finite),
        )
        self.step += 1
        self._first_ready_s, self._returned_s = None, perf_counter()
        return self.last_step

    @property
    def _nonfinite_steps(self) -> int:
        """How many steps before this one were not finite."""
        return self.last_step.nonfinite_steps if self.last_step is not None else 0

    def _note_nonfinite(self, numbers: Sequence[int]) -> None:
        """Tell of the first step that is not finite, on rank 0."""
        if self._told_nonfinite or self._engine.rank:
            return
        self._told_nonfinite = True
        names = [*(route.name for route in self._routes), *self._sparse]
        buckets = ", ".join(f"{number} ({names[number]})" for number in numbers)
        log.warning(
            "hvd_compress: step %d: gradients are NaN or infinite on some rank, in bucket %s; residuals stay as they "
            "were. optimizer.last_step.nonfinite_steps counts such steps, and this is told once",
            self.step,
            buckets,
        )

    def _note_float64(self) -> None:
        """Tell, on rank 0, that what was to be compressed is not."""
        names = [name for name, parameter in self._parameters.items() if parameter.dtype == torch.float64]
        if names and self._request.compressor != Cast() and not self._engine.rank:
            log.warning(
                "hvd_compress: %d of %d parameters are float64 (%s first) and travel dense, without compression: only "
                "float32, float16 and bfloat16 gradients are compressed",
                len(names),
                len(self._parameters),
                names[0],
            )

    @property
    def rollout_due(self) -> str:
        """Why the controller wants a rollout now, or nothing. The same on all ranks."""
        finite = self.last_step is not None and self.last_step.finite
        return self.controller.rollout_due if self.controller is not None and finite else ""

    def roll_out(self, train: Callable[[], object], restore: Callable[[], None], steps: int) -> None:
        """Train `steps` steps with each candidate ratio, take them back, and choose ratios by what they gained.

        Args:
            train: trains one step.
            restore: brings back what that changes outside of this reducer.

        Raises:
            ConfigError: ranks want different numbers of steps.
            UsageError: `train` does not take exactly one step.
        """
        steering, goal = self.steering, self._request.ratio
        assert steering is not None
        assert goal is not None
        steering.wait(self.step)
        self._pipeline.begin(partial(same_steps, steps), f"step {self.step}, comparing the steps of a rollout")()
        first, last, own = self.step, self.last_step, self.states.keep()
        for ratio in goal.ratios:
            steering.roll_out(ratio)
            try:
                for taken in range(steps):
                    train()
                    if self.step != first + taken + 1:
                        raise UsageError(
                            f"a step of the rollout takes {self.step - first - taken} steps: it must be one"
                        )
            finally:
                own()
                restore()
                self.step, self.last_step = first, last
        steering.compare(first)

    @property
    def failed(self) -> bool:
        """Whether an error has ended all exchanges."""
        return self._pipeline.failed

    def fail(self, error: BaseException) -> None:
        """The caller met an error of its own in a step: exchange nothing more."""
        self._pipeline.fail(error)

    def close(self) -> None:
        """Let the threads end, and what is written be complete."""
        with ExitStack() as closing:  # each, also where another one fails
            closing.callback(self._pipeline.stop)
            for written in (self._timeline, self.steering):
                if written is not None:
                    closing.callback(written.close)

    def _let_go(self) -> None:
        for name, gradient in self._held.items():
            self._parameters[name].grad = gradient
        self._held.clear()

    def _set_up(self) -> None:
        agreement = self._pipeline.connect(self._connect, self._agree, self._settings.calibration_s)
        file = self._settings.timeline_of(self._engine.rank)
        self._timeline = Timeline(file, self._engine.rank, self._engine.name, self._returned_s) if file else None
        self.step = agreement.step
        self._was_sparse = set(agreement.sparse)
        self._sparse = [] if self._options.sparse_as_dense else list(agreement.sparse)
        order = [name for name in agreement.order if name not in self._sparse]
        layouts = plan_buckets(order, self._slots, self._settings.fusion_threshold_bytes, self._groups(order))
        self._routes = [self._route(number, layout) for number, layout in enumerate(layouts)]
        takes = self._engine.capabilities.devices
        for name in self._sparse:
            device = self._parameters[name].device
            self._sparse_lanes[name] = self._make_lane(device, device.type, takes)
        self._route_of = {name: route for route in self._routes for name in route.bucket.layout.names}
        self._planned = True
        self._note_float64()
        if self._network is not None:
            watchers = [self._timeline.event] if self._timeline else []
            self.steering = Steering(
                self._routes, self._request, self._settings, self._engine, self._network, self._pipeline, watchers
            )

    def _trace(self, exchanged: Exchanged, wait_from_s: float) -> None:
        """Show the timeline the step that is over, if it is one of those that it samples."""
        if self._timeline is None or self.step % self._settings.timeline_every:
            return
        first_s = self._first_ready_s or wait_from_s
        moments = (self._returned_s, first_s, wait_from_s, perf_counter())
        training = list(zip(("FORWARD", "BACKWARD", "WAIT"), pairwise(moments), strict=True))
        went = [(r.name, r.decision.facts(), r.decision.reason) for r in self._routes]
        went += [(name, {"candidate": "sparse rows"}, "its gradient is sparse") for name in self._sparse]
        records = [
            TraceRecord(name, how, spans, reason)
            for (name, how, reason), spans in zip(went, exchanged.spans, strict=True)
        ]
        self._timeline.step(self.step, training, records)

    def _decide(self, layout: Layout, device: torch.device) -> Decision:
        return decide(self._request, layout, self._engine.world_size, self._engine.capabilities, device.type)

    def _agree(self, engine: Engine) -> Agreement:
        """Shake hands; then what the engine cannot do of what all have asked for is an error, on every rank alike."""
        self._engine = engine
        never = [name for name in self._parameters if name not in self._ready]
        words = {
            "the version of hvd_compress": __version__,
            "compression": repr(self._request),
            "options": repr(self._options),
            "memory that the engine takes": " and ".join(engine.capabilities.devices),
            "HOROVOD_FUSION_THRESHOLD": str(self._settings.fusion_threshold_bytes),
            "HVD_COMPRESS_ADAPT": str(int(self._settings.adapt)),
            "HVD_COMPRESS_CALIBRATION_S": str(self._settings.calibration_s),  # says what is measured
        }
        if self._request.ratio is not None and self._request.ratio.solver == "nsga2":
            words["the version of pymoo"] = version("pymoo")  # each rank searches by itself
        described = [_describe(n, p, self._slots[n].place) for n, p in self._parameters.items()]
        adapts = self._settings.adapt and is_adaptive(self._request) and engine.world_size > 1
        hindrance = self._settings.hindrance(engine.rank, adapts)
        offer = Offer(words, described, [*self._ready, *never], sorted(self._was_sparse), self.step, hindrance)
        with engine.aside():  # the handshake belongs to no step
            agreement = agree(engine, offer)
        if self._request.algorithm != "auto":
            assert self._request.verb is not None
            engine.require(self._request.verb, self._request.algorithm)
        for name, parameter in self._parameters.items():
            self._decide(Layout((name,), (tuple(parameter.shape),), parameter.dtype), parameter.device)
        if adapts:
            engine.place = f"rank {engine.rank}, measuring the network, which HVD_COMPRESS_ADAPT=0 leaves out"
            self._network = Network(obtain(engine, self._settings.calibration_s)[0])
        return agreement

    def _groups(self, order: Sequence[str]) -> Sequence[Sequence[str]]:
        groups = self._options.groups
        if not isinstance(groups, int):
            return groups
        if groups == 0 or not order:
            return ()
        size = -(-len(order) // groups)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _route(self, number: int, layout: Layout) -> Route:
        bucket = Bucket(layout, self._parameters)
        decision = self._decide(layout, bucket.flat.device)
        lane = self._make_lane(bucket.flat.device, decision.device, self._engine.capabilities.devices)
        compressor = decision.compressor
        own = compressor.new_state(layout, lane.device)
        state = self.states.bind(layout, lane.device, compressor.error_feedback, own)
        kept = (state.residual.current, state.residual.pending) if state.residual else ()
        return Route(number, bucket, decision, decision.build(), state, lane, lane.workspace(bucket.flat, *kept))

    def _launch(self, route: Route) -> None:
        bucket = route.bucket
        assert not route.launched, f"bucket {route.number} would leave twice in step {self.step}"
        route.launched = True
        bucket.depart()
        if self._options.predivide_factor != 1.0:
            route.lane.gather()
            bucket.flat.mul_(1.0 / self._options.predivide_factor)
        scale = self._options.predivide_factor / self._divisor
        exchange = route.leave(self.step, scale, self._engine.rank, self._engine.world_size)
        self._pipeline.submit(route.number, exchange, self._label(route.number, route.name), route.lane)

    def _launch_sparse(self) -> dict[str, SparseRows]:
        lanes, rows = self._sparse_lanes, {}
        for number, name in enumerate(self._sparse, start=len(self._routes)):
            rows[name] = SparseRows(self._parameters[name], 1.0 / self._divisor, lanes[name])
            self._pipeline.submit(number, rows[name], self._label(number, name), lanes[name])
        return rows

    def _label(self, number: int, name: str) -> str:
        return f"step {self.step}, bucket {number} ({name})"

    @property
    def _divisor(self) -> int:
        return self._engine.world_size if self._options.average else 1

    def _take_results(self, finite: bool, rows: Mapping[str, SparseRows]) -> None:
        for route in self._routes:
            if finite:
                route.state.commit()
            else:
                route.state.discard()
            for name, parameter in route.bucket.parameters.items():
                if name in route.bucket.had_gradient or parameter.requires_grad:
                    view = route.bucket.views[name]
                    parameter.grad = view.to_sparse(1) if name in self._was_sparse else view
            route.bucket.reset()
            route.launched = False
        for name, exchange in rows.items():
            result = exchange.result
            self._sparse_lanes[name].arrive(result._indices(), result._values())
            self._parameters[name].grad = result

    def _dense_bytes(self) -> int:
        return sum(
            wire.allreduce(route.bucket.layout.nbytes, self._engine.world_size, "ring") for route in self._routes
        )

    def _meet_sparse(self, name: str) -> None:
        if not self._planned:
            self._was_sparse.add(name)
        self._check_dense(name)

    def _check_dense(self, name: str) -> None:
        """A sparse gradient may not come as a surprise after the handshake."""
        gradient = self._parameters[name].grad
        expected = self._options.sparse_as_dense or not self._planned or name in self._sparse
        if gradient is not None and gradient.is_sparse and not expected:
            raise UnsupportedError(
                f"step {self.step}: the gradient of {name!r} is sparse, and was dense or absent on all ranks in the "
                "first step: pass sparse_as_dense=True"
            )


def _check_devices(parameters: Mapping[str, torch.Tensor], request: Request) -> None:
    """Raise what makes compression impossible on this rank, before any other rank is asked."""
    for name, parameter in parameters.items():
        with located(f"parameter {name!r}"):
            device = compression_device(request, parameter.device.type)
            if device == "cuda" and request.compressor.compresses:
                cuda_kernels(parameter.device)


def _describe(name: str, parameter: torch.Tensor, place: str) -> str:
    words = f"{name}: {tuple(parameter.shape)} {parameter.dtype}"
    return words if place == "cpu" else f"{words} on {place}"


def _places(parameters: Iterable[torch.Tensor]) -> dict[torch.device, str]:
    """Name devices by the order in which parameters lie on them: ranks use GPUs of different numbers."""
    devices = dict.fromkeys(parameter.device for parameter in parameters)
    return {
        device: device.type if device.type == "cpu" else f"{device.type} {number}"
        for number, device in enumerate(devices)
    }
