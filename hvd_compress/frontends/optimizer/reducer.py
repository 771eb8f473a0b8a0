"""The reducer: takes gradients as they become ready and gives back their reduced values.

It knows parameters, buckets and the session, and neither Horovod nor torch.optim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from hvd_compress.buckets.bucket import Bucket
from hvd_compress.buckets.cutting import Cutting
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import cut_as, plan_buckets, plan_so_many
from hvd_compress.buckets.under_way import UnderWay, stand_in
from hvd_compress.collectives.sparse_rows import no_rows
from hvd_compress.devices import Lanes
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import UnsupportedError, UsageError
from hvd_compress.frontends.handle import Handle
from hvd_compress.request.request import Request
from hvd_compress.session.report import StepReport
from hvd_compress.settings import Settings

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


class Reducer:
    """Reduces the gradients of named parameters over the ranks of an engine, one step after the other.

    In the first step it watches in which order gradients become ready; at its end all ranks shake hands, take over the
    order of rank 0, and cut it into buckets. From then on a bucket leaves as soon as it is full.

    Attributes:
        handle: of the session that exchanges the buckets.
        session: the same.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        connect: Callable[[], Engine],
        options: ReduceOptions,
        settings: Settings,
        lanes: Lanes | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: by name, in an order that is the same on all ranks.
            request: what the user asked for.
            connect: creates the engine; called once, in the communication thread, at the end of the first step.
            lanes: of the session.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.

        Raises:
            ConfigError, UnsupportedError: as Handle.
        """
        self._options, self._settings = options, settings
        self.handle = Handle(
            parameters,
            request,
            settings,
            connect,
            average=options.average,
            predivide_factor=options.predivide_factor,
            lanes=lanes,
            arrivals=arrivals,
        )
        self.session, self._parameters = self.handle.session, self.handle.parameters
        self._unused = self.handle.unused
        self._ready: list[str] = []
        self._held: dict[str, torch.Tensor] = {}  # gradients of the first step, before there are buckets
        self._buckets: list[Bucket] = []
        self._number_of: dict[str, int] = {}
        self._sparse: list[str] = []
        self._was_sparse: set[str] = set()
        self._is_set_up = False
        self._order: list[str] = []  # of dense gradients
        self._first_cut: Sequence[Layout] = ()
        self._cutting: Cutting | None = None  # while it may be cut anew
        self._ended_s = perf_counter()

    def comes(self) -> None:
        """The gradient of some parameter is about to be computed."""
        self._unused.comes()

    def ready(self, name: str) -> None:
        """The gradient of a parameter is final for this step. Call it at most once a step and parameter."""
        parameter = self._parameters[name]
        self._unused.begins()
        self.session.begin_step()
        if parameter.grad is not None and parameter.grad.is_sparse:
            self._meet_sparse(name)
        if not self._is_set_up:
            self._ready.append(name)
            if parameter.grad is not None:
                self._held[name] = parameter.grad
                parameter.grad = stand_in(parameter.grad)
        elif name in self._number_of:
            number = self._number_of[name]
            full = self._buckets[number].arrive(name)
            self.session.buckets.mark_ready(number)
            if full and not self.session.services.hold_back:
                self.session.submit(number, self._buckets[number].flat)

    def finish(self) -> StepReport:
        """Exchange what has not left yet, wait, and put the results into the parameters' gradients.

        A parameter without a gradient counts as zero and gets the others' result, unless it is frozen.

        Raises:
            ConfigError: in the first step, if ranks differ.
            UsageError: a gradient was dropped or replaced while it was under way.
            CommunicationError, PayloadError: the exchange failed. Residuals are as they were before the step.
        """
        start_s = perf_counter()
        try:
            self._unused.begins()
            self.session.begin_step()
            self._require_unchanged()
            if not self._is_set_up:
                self._let_go()
                self._set_up()
            for number, bucket in enumerate(self._buckets):
                if not self.session.buckets.is_launched(number):
                    for name in bucket.missing:
                        self._check_dense(name)
                        bucket.arrive(name)
                    self.session.submit(number, bucket.flat)
            for number, name in enumerate(self._sparse, start=len(self._buckets)):
                parameter = self._parameters[name]
                self.session.submit(number, parameter.grad if parameter.grad is not None else no_rows(parameter))
            report = self.session.end_step(start_s)
            rows = [self.session.result(number) for number, _ in enumerate(self._sparse, start=len(self._buckets))]
            if self._cutting is not None:
                self._consider(self._cutting, report)  # from here on buckets may have other numbers
            self._ended_s = perf_counter()
            for bucket in self._buckets:
                bucket.give_back(self._shaped, self.session.steering.unsent)
            for name, result in zip(self._sparse, rows, strict=True):
                parameter = self._parameters[name]
                if parameter.grad is not None or parameter.requires_grad:
                    parameter.grad = result
            if self.session.buckets.remember:
                self._unused.exchanged()
        except BaseException as error:  # an interrupt, too: a step that was taken by halves must not go on
            self.session.fail(error)
            raise
        return report

    @property
    def failed(self) -> bool:
        """Whether an error has ended all exchanges."""
        return self.session.failed

    def fail(self, error: BaseException) -> None:
        """The caller met an error of its own in a step: exchange nothing more."""
        self.session.fail(error)

    def close(self) -> None:
        """Let the threads end, and what is written be complete."""
        self.session.close()

    def holds_results(self) -> bool:
        """Whether any parameter still has a result of the last exchange as its gradient."""
        return any(bucket.holds_results() for bucket in self._buckets)

    def _require_unchanged(self) -> None:
        """What was done to gradients that are under way would be undone: they were exchanged as they were."""
        held = [name for name in self._held if not isinstance(self._parameters[name].grad, UnderWay)]
        changed = [*held, *(name for bucket in self._buckets for name in bucket.changed)]
        if changed:
            raise UsageError(
                f"step {self.session.step}: the gradients of {len(changed)} parameters were dropped or replaced after "
                f"backward() and before synchronize() or step(), {changed[0]!r} first, while they were being "
                "exchanged: call optimizer.synchronize() first, on every rank, then drop or change gradients, then "
                "call step() within `with optimizer.skip_synchronize():`, or not at all to leave the step out"
            )

    def _let_go(self) -> None:
        for name, gradient in self._held.items():
            self._parameters[name].grad = gradient
        self._held.clear()

    def _set_up(self) -> None:
        never = [name for name in self._parameters if name not in self._ready]
        agreement = self.session.open(
            [*self._ready, *never],
            sorted(self._was_sparse),
            repr(self._options),
            by_rows=not self._options.sparse_as_dense,
        )
        self._was_sparse = set(agreement.sparse)
        self._sparse = [] if self._options.sparse_as_dense else list(agreement.sparse)
        order = [name for name in agreement.order if name not in self._sparse]
        parts = self.session.steering.decider.parts(order)
        layouts = self._first_cut = plan_buckets(
            order, self.handle.slots, self._settings.fusion_threshold_bytes, self._groups(order), parts
        )
        self._order = order
        if self._keeps_cut and not parts:
            dense = [names for names in self.session.loaded.cuts if not set(names) <= set(self._sparse)]
            resumed = cut_as(dense, layouts)
            layouts = layouts if resumed is None else resumed
            if resumed is None and self._may_cut:
                self._cutting = Cutting(sum(layout.nbytes for layout in layouts))
            self.session.cuts_stand = self._cutting is None
        self._set_buckets(layouts)
        self._is_set_up = True

    def _set_buckets(self, layouts: Sequence[Layout]) -> None:
        rows = [self.handle.slots[name].layout(name, sparse=True) for name in self._sparse]
        self._buckets = [Bucket(layout, self._parameters) for layout in layouts]
        self.session.set_buckets([*layouts, *rows], self.handle.devices)
        self._number_of = {name: number for number, layout in enumerate(layouts) for name in layout.names}

    @property
    def _keeps_cut(self) -> bool:
        """Whether nobody else has a say in how gradients are cut, so that a checkpoint's cut is taken over."""
        settings, policy = self._settings, self.session.policy
        assert policy is not None
        return settings.cuts and not settings.recordings and not self._options.groups and policy.cuttable

    @property
    def _may_cut(self) -> bool:
        """Whether gradients may be cut anew: where an exchange takes long enough to be hidden."""
        return self._keeps_cut and self._settings.adapt and self.session.engine.among_hosts

    def _consider(self, cutting: Cutting, report: StepReport) -> None:
        """A step is over: perhaps cut its results, and all that follow, anew. All ranks come by here."""
        assert self.session.policy is not None
        if self.session.services.hold_back or not self.session.policy.settled:
            return
        figures = cutting.step(report.wait_s, perf_counter() - self._ended_s)
        if not figures:
            return
        before = len(self._buckets)
        wanted = cutting.decide(self.session.gathering.figures(figures, "into how many buckets to cut"), before)
        if wanted != before:
            layouts = plan_so_many(self._order, self.handle.slots, wanted) if wanted else self._first_cut
            buckets = self._buckets
            self._set_buckets(layouts)
            for bucket in self._buckets:
                bucket.take_results(buckets)
        if cutting.settled:
            self._cutting, self.session.cuts_stand = None, True
            if self.session.engine.rank == 0:
                found = f"{len(self._buckets)} bucket{'s' * (len(self._buckets) != 1)}"
                log.info("hvd_compress: gradients travel in %s: %s", found, cutting.reason)

    def _groups(self, order: Sequence[str]) -> Sequence[Sequence[str]]:
        groups = self._options.groups
        if not isinstance(groups, int):
            return groups
        if groups == 0 or not order:
            return ()
        size = -(-len(order) // groups)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _shaped(self, name: str, result: torch.Tensor) -> torch.Tensor:
        """Return the result of a parameter as its gradient was."""
        return result.to_sparse(1) if name in self._was_sparse else result

    def _meet_sparse(self, name: str) -> None:
        if self._parameters[name].is_complex() and not self._options.sparse_as_dense:
            raise UnsupportedError(f"the gradient of {name!r} is sparse and complex: pass sparse_as_dense=True")
        if not self._is_set_up:
            self._was_sparse.add(name)
        self._check_dense(name)

    def _check_dense(self, name: str) -> None:
        """A sparse gradient may not come as a surprise after the handshake."""
        gradient = self._parameters[name].grad
        expected = self._options.sparse_as_dense or not self._is_set_up or name in self._sparse
        if gradient is not None and gradient.is_sparse and not expected:
            raise UnsupportedError(
                f"step {self.session.step}: the gradient of {name!r} is sparse, and was dense or absent on all ranks "
                "in the first step: pass sparse_as_dense=True"
            )
