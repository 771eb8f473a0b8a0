"""The front end of DDP: a communication hook that hands DDP's buckets to an exchange session."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol

import torch

from hvd_compress.buckets.cutting import Watch, ddp_cap, number_of_buckets
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import cut_as
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.ddp.accumulators import Accumulators
from hvd_compress.frontends.ddp.regroup import Filled, put_back, regrouped
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.gradient_hooks import GradientHooks
from hvd_compress.frontends.handle import Handle
from hvd_compress.request.request import Request
from hvd_compress.session.notices import tell_bucket_cap
from hvd_compress.settings import Settings


class GradBucket(Protocol):
    """What torch.distributed.GradBucket promises, which torch does not declare."""

    def index(self) -> int: ...

    def is_last(self) -> bool: ...

    def buffer(self) -> torch.Tensor: ...

    def parameters(self) -> list[torch.Tensor]: ...


Result = torch.futures.Future[torch.Tensor]

FIRST_CUT_STEPS = 2
"""DDP cuts its buckets anew after the first step, and where its graph is static after the second."""


class GradientHook:
    """Exchanges the buckets of a DDP model, which calls it in each backward pass for each bucket, in their order.

    A step whose buckets are known travels bucket by bucket, beside the backward pass. DDP does not say beforehand how
    it cuts them, and cuts them anew after the first step: such a step is held until its last bucket has come.

    Attributes:
        handle: of the session that exchanges the buckets.
        session: the same.
        is_replica: whether this rank's parameters are those of the others.
        factor: by which results are multiplied, where some ranks bring zeros and are not to count in means.
        gives_all: whether parameters get their results that this rank has not used, as others may have.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        settings: Settings,
        connect: Callable[[], Engine],
        arrivals: Arrivals | None = None,
        leaves_out: Callable[[], bool] = bool,
        options: str = "DDP",
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: those that DDP reduces, by name, in the same order on all ranks.
            connect: creates the engine, in the first backward pass.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.
            leaves_out: whether DDP gives no gradient to a parameter that no rank has used.
            options: of DDP, compared between ranks.

        Raises:
            ConfigError, UnsupportedError: as Handle.
        """
        self.handle = Handle(parameters, request, settings, connect, arrivals=arrivals)
        self.session, self._parameters = self.handle.session, self.handle.parameters
        self._accumulators = Accumulators(parameters)
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._cuts: dict[tuple[int, ...], tuple[Layout, list[Strides]]] = {}  # by the ids of their parameters
        self._step: list[_Taken] = []  # the buckets of this step so far
        self._held = False  # whether one of them was not known
        self._steps, self.is_replica, self.factor, self.gives_all = 0, True, 1.0, False
        self._opened, self._leaves_out, self._options = False, leaves_out, options
        self._failure: str | None = None
        self._has_begun = False  # whether DDP has seen a forward pass since the last exchange
        self._told_apart = False
        self._watch: Watch | None = Watch()
        self._unused, me = self.handle.unused, weakref.ref(self)  # a parameter must not hold this
        self._hooks = GradientHooks(self._unused.watched, partial(_gradient_comes, me), partial(_gradient_came, me))

    def __call__(self, bucket: GradBucket) -> Result:
        """Take one bucket; the future holds the average over ranks, which lies in the bucket, when the step is over.

        Raises:
            ConfigError: in the first step, if ranks differ.
            CommunicationError, PayloadError: the exchange failed. Residuals are as they were before the step.
        """
        try:
            return self._take(bucket)
        except BaseException as error:  # other ranks may wait for this one: it must be able to end
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """An error has left DDP within a step: exchange nothing more, and let no forward pass begin."""
        self.session.fail(error)
        self._failure = str(error) or type(error).__name__

    def close(self) -> None:
        """Let the threads of the session end, and watch no gradient any more."""
        self.session.close()
        for each in self._hooks.handles:
            each.remove()
        self._hooks.handles.clear()

    def complete_without_results(self) -> None:
        """After fail(): DDP waits for no bucket of this step. What it gets is not to be used."""
        for taken in self._step:
            if not taken.future.done():
                taken.future.set_result(taken.buffer)

    def comes(self) -> None:
        """The gradient of a parameter that is watched is about to be computed."""
        self._unused.comes()

    def came(self) -> None:
        """A gradient was accumulated. Warn, once, where DDP does not know of it."""
        if not self._has_begun and not self._told_apart:
            self._told_apart = True
            warnings.warn(
                "a backward pass through a compressed model follows no forward pass of its DistributedDataParallel "
                "since the last exchange, as where model.module is called, another wrapper over it, or backward() a "
                "second time: this model exchanges no such gradients. Call the model that compress() was called for, "
                "once for each backward pass, or exchange them yourself",
                stacklevel=2,
            )

    @property
    def known(self) -> Container[int]:
        """The ids of parameters that DDP reduces."""
        return self._names

    def require_working(self) -> None:
        """A forward pass begins: raise what keeps its gradients from being exchanged.

        Raises:
            CommunicationError: after an error. DDP's own state is that of a step that was taken by halves.
            UsageError: a parameter was converted after DDP has wrapped it, so that DDP does not see its gradients.
        """
        if self._failure is not None:
            raise CommunicationError(
                f"nothing is exchanged any more, since an earlier exchange failed: {self._failure}"
            )
        self._has_begun = True
        if replaced := self._accumulators.replaced():
            raise UsageError(
                f"{len(replaced)} parameters were converted after DistributedDataParallel had wrapped them, "
                f"{replaced[0]!r} first, as model.half(), double() or to(device) do: DDP does not see their gradients "
                "any more, and each rank would train by itself. Convert a module before it is wrapped, or wrap it and "
                "call compress() anew, on every rank"
            )

    def _take(self, bucket: GradBucket) -> Result:
        number, buffer = bucket.index(), bucket.buffer()
        if number == 0:
            self._begin()
        layout, strides = self._cut(bucket)
        known = self.session.buckets.layouts
        taken = _Taken(
            layout, _real(buffer), strides, buffer, Result(devices=[buffer.device] if buffer.is_cuda else [])
        )
        self._step.append(taken)
        self._held = self._held or self._resumes or number >= len(known) or known[number] != layout
        if not self._held and not self.session.services.hold_back:
            self._submit(number, taken.flat)
        if bucket.is_last():
            self._finish()
        return taken.future

    def _begin(self) -> None:
        self._step, self._held = [], False
        self._unused.begins()
        self.session.begin_step()

    def _finish(self) -> None:
        """All buckets are there: send what was held, wait for all, and give DDP the results."""
        own = buckets = [(taken.layout, taken.flat) for taken in self._step]
        if self._held or len(self._step) != len(self.session.buckets.layouts):
            if not self._opened:
                self.session.open([n for layout, _ in own for n in layout.names], options=self._options)
                self._opened = True
            buckets = self._as_resumed(own)
            self.session.set_buckets([layout for layout, _ in buckets], self.handle.devices)
        self._steps += 1
        start_s = perf_counter()
        for number, (_, flat) in enumerate(buckets):
            if not self.session.buckets.is_launched(number):
                self._submit(number, flat)
        in_backward = torch._C._current_graph_task_id() != -1  # not where join() lets a rank that is done take part
        if self.session.services.replicas is not None:
            self.session.services.replicas.is_replica = in_backward and self.is_replica
        self.session.end_step(start_s)
        self._has_begun = False
        self._advise()
        if self._steps <= FIRST_CUT_STEPS:
            self.session.buckets.release_gradients()
        if buckets is not own:
            put_back(buckets, own)
        if self.factor != 1:
            for taken in self._step:
                taken.flat.mul_(self.factor)
        for taken in self._step:
            taken.future.set_result(taken.buffer)
        if in_backward and (self._leaves_out() or self.session.steering.unsent or self.session.buckets.remember):
            engine, unsent = torch.autograd.Variable._execution_engine, self.session.steering.unsent
            given = self._step if self._leaves_out() else ()
            # DDP ends the backward pass in a callback that is queued after this one: another one follows it.
            engine.queue_callback(lambda: engine.queue_callback(lambda: self._end_pass(given, unsent)))
        self._step = []

    def _advise(self) -> None:
        """Say once, on rank 0, where DDP cuts gradients into so few buckets that steps wait for them among hosts.

        Collective, in the last step that is watched: what counts is the wait of the rank that waits for no other.
        """
        session, report = self.session, self.session.last_step
        if self._watch is None or report is None or self._steps <= FIRST_CUT_STEPS or session.services.hold_back:
            return
        if self._watch.add(report.wait_s):
            least_s, layouts, self._watch = self._watch.least_s, session.buckets.layouts, None
            if not session.engine.among_hosts:
                return
            waited_s = min(of_rank[0] for of_rank in session.gathering.figures([least_s], "how long steps wait"))
            sizes = [numel * layout.dtype.itemsize for layout in layouts for numel in layout.segments]
            wanted = number_of_buckets(waited_s, sum(sizes))
            cap_mib, made = ddp_cap(sizes, wanted)
            if session.engine.rank == 0 and made > len(layouts):
                tell_bucket_cap(len(layouts), sum(sizes), waited_s, cap_mib, made)

    @property
    def _resumes(self) -> bool:
        """Whether buckets of this step may travel in another cut than DDP's: none may leave before all are there."""
        return self._steps < FIRST_CUT_STEPS and bool(self.session.loaded.cuts)

    def _as_resumed(self, own: list[Filled]) -> list[Filled]:
        """Return this step's buckets, cut as before the checkpoint that was loaded until DDP has cut them anew.

        What is rounded in blocks depends on the cut.
        """
        layouts = [layout for layout, _ in own]
        wanted = cut_as(self.session.loaded.cuts, layouts) if self._resumes else None
        return own if wanted is None or wanted == layouts else regrouped(own, wanted)

    def _end_pass(self, results: Sequence[_Taken], unsent: Collection[str]) -> None:
        """DDP has given parameters their results."""
        self._give(results, unsent)
        if self.session.buckets.remember:
            self._unused.exchanged()

    @torch.no_grad()
    def _give(self, results: Sequence[_Taken], unsent: Collection[str]) -> None:
        """Give parameters their results where DDP does not, the same on all ranks, as results are.

        Those of which nothing was sent get none, where the policy holds them.

        A parameter that no rank has used has no gradient, as without compression, nor has one that was frozen: what
        earlier steps have not sent of it waits until it is used again. Where the program keeps gradients of zero, DDP
        leaves it open who was used, and what was not sent is the gradient.
        """
        unused = []
        for name in unsent:  # in any order: each by itself
            self._parameters[name].grad = None
        for taken in results:
            parts = torch.split(taken.flat, list(taken.layout.segments))
            for name, part, strides in zip(taken.layout.names, parts, taken.strides, strict=True):
                parameter = self._parameters[name]
                if name in unsent:
                    continue
                result = _shaped(part, parameter, strides)
                if not parameter.requires_grad or (parameter.grad is None and not self.gives_all):
                    unused.append(name)
                elif parameter.grad is None:
                    parameter.grad = result.clone()
                elif not torch.equal(parameter.grad, result):
                    parameter.grad.copy_(result)
        if unused:
            self.session.buckets.hold_back(unused)

    def _submit(self, number: int, flat: torch.Tensor) -> None:
        self.session.buckets.mark_ready(number)
        self.session.submit(number, flat)

    def _cut(self, bucket: GradBucket) -> tuple[Layout, list[Strides]]:
        """Return which parameters lie in a bucket, and the strides in which DDP holds each since it has cut them so."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._cuts:
            if unknown := [tuple(p.shape) for p in parameters if id(p) not in self._names]:
                raise ConfigError(
                    f"DDP reduces a parameter of shape {unknown[0]} that was frozen when compress() was called: freeze "
                    "and unfreeze parameters before the model is wrapped; or it is of another model that the same pair "
                    "of hook() is registered with, and each needs its own"
                )
            names, flat = tuple(self._names[each] for each in key), _real(bucket.buffer())
            shapes = tuple(self.handle.slots[name].shape for name in names)
            layout = Layout(names, shapes, flat.dtype, self.handle.slots[names[0]].place)
            if flat.numel() != layout.numel:
                raise UnsupportedError(
                    f"DDP's bucket of {layout.called} has {flat.numel()} elements and its parameters have "
                    f"{layout.numel}: this version of torch, {torch.__version__}, packs them in another way"
                )
            self._cuts[key] = layout, [_strides(parameter) for parameter in parameters]
        return self._cuts[key]


@eagerly
def _gradient_comes(me: weakref.ref[GradientHook], _: torch.Tensor) -> None:
    hook = me()
    if hook is not None:
        hook.comes()


@eagerly
def _gradient_came(me: weakref.ref[GradientHook], _: torch.Tensor) -> None:
    hook = me()
    if hook is not None:
        hook.came()


Strides = tuple[int, ...] | None
"""Of a gradient in DDP's bucket: those of a parameter that fills its memory; None where it is contiguous."""


@dataclass(frozen=True)
class _Taken:
    """A bucket of this step: its gradients as real numbers, how they lie in it, and what DDP is to be given."""

    layout: Layout
    flat: torch.Tensor
    strides: list[Strides]
    buffer: torch.Tensor
    future: Result


def _real(buffer: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer


def _strides(parameter: torch.Tensor) -> Strides:
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return parameter.stride() if dense else None


def _shaped(part: torch.Tensor, parameter: torch.Tensor, strides: Strides) -> torch.Tensor:
    """Return a part of DDP's bucket as the gradient of a parameter, which it holds in the order of its memory."""
    flat = torch.view_as_complex(part.view(-1, 2)) if parameter.is_complex() else part
    return flat.view(parameter.shape) if strides is None else flat.as_strided(parameter.shape, strides)
