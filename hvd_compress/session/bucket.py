"""A bucket's exchange from step to step: its decision, the collective that carries it out, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective, Exchange, Observed, Probe, ProbeReport, Work
from hvd_compress.devices import Lane
from hvd_compress.feedback.states import RESULT_SUM, BucketState, Key, States
from hvd_compress.request.decision import Decision


@dataclass(eq=False)
class SessionBucket:
    """One bucket, from step to step.

    Attributes:
        number: its place in the order in which buckets leave.
        allocates_sum: whether the results of steps can be summed.
        shares_sum: whether a sum is that of a checkpoint, which rank 0 alone may have.
        launched: whether it has left in this step.
        probe: what is to be known of the exchange of the coming step.
        report: what is known of the exchange that is over.
    """

    number: int
    layout: Layout
    decision: Decision
    lane: Lane
    states: States
    allocates_sum: bool = False
    shares_sum: bool = False
    launched: bool = False
    probe: Probe = Probe()
    report: ProbeReport = ProbeReport()

    def __post_init__(self) -> None:
        self.collective: Collective = self.decision.build()
        self.state: BucketState
        self.flat: torch.Tensor | None = None
        self._workspace: torch.Tensor | None = None
        self._sent = self._cleared = False  # since the decision: whether a step was kept, and what is of no use dropped
        self._bind(self._own())

    def decide(self, decision: Decision) -> None:
        """Travel so from the coming step on. What is remembered stays, also where this decision has no use for it."""
        assert decision.device == self.decision.device, "a bucket's lane leads to one device"
        if decision != self.decision:
            self._sent = self._cleared = False
            self.collective = decision.build()
            own = self._resized(self._own())
            if not self._has_state(own):
                self._bind(own)
        self.decision = decision

    def _own(self) -> Mapping[Key, torch.Tensor]:
        own = self.collective.compressor.new_state(self.layout, self.lane.device)
        if not self.allocates_sum or self.layout.sparse or self.layout.dtype == torch.float64:
            return own
        segments = zip(self.layout.names, self.layout.segments, strict=True)
        return {**own, **{(RESULT_SUM, name): torch.zeros(n, device=self.lane.device) for name, n in segments}}

    def _resized(self, own: Mapping[Key, torch.Tensor]) -> Mapping[Key, torch.Tensor]:
        """Return what a compressor keeps, with what goes on of what another level of it has kept in another size."""
        kept = self.state.current
        others = [key for key in own if key in kept and kept[key].shape != own[key].shape]
        resized = {key: self.collective.compressor.resized(kept[key], own[key]) for key in others}
        going_on = {key: tensor for key, tensor in resized.items() if tensor is not own[key]}
        if going_on:
            self.states.forget_own(self.layout.names, kept.keys() - going_on.keys())
        return {**own, **going_on}

    def add_result(self) -> None:
        """Add the result of the step that is over to those before."""
        start = 0
        for name, numel in zip(self.layout.names, self.layout.segments, strict=True):
            sum_ = self.state.current.get((RESULT_SUM, name))
            if sum_ is not None and self.flat is not None:
                key, result = (RESULT_SUM, name), self.flat[start : start + numel].to(sum_.device)
                self.state.replace(key, torch.add(sum_, result, out=self.state.spare.get(key)))
            start += numel

    def _has_state(self, own: Mapping[Key, torch.Tensor]) -> bool:
        kept = self.state.current
        fits = all(key in kept and kept[key].shape == tensor.shape for key, tensor in own.items())
        return fits and (self.state.residual is not None or not self.collective.error_feedback)

    def _bind(self, own: Mapping[Key, torch.Tensor]) -> None:
        before = getattr(self, "state", BucketState())
        feedback = self.collective.error_feedback or self._may_claim()
        self.state = self.states.bind(self.layout, self.lane.device, feedback, {**before.current, **own})
        self.flat = None

    def commit(self) -> None:
        """The step succeeded on all ranks."""
        self.state.commit()
        self._sent = True

    def drop(self) -> None:
        """Forget what other decisions have left that this one has no use for, once a step of it was kept.

        That has sent their residual, up to what the gradient's dtype rounds off, as in every step without one.
        """
        if self._cleared or not self._sent:
            return
        self._cleared, own = True, self._own()
        residual = self.state.residual is not None and not self.collective.error_feedback
        if residual:
            self.states.forget(self.layout.names)
        if self.states.forget_own(self.layout.names, own) or residual:
            self.state = self.states.bind(self.layout, self.lane.device, self.collective.error_feedback, own)
            self.flat = None

    def claim(self) -> None:
        """Take over a residual that a checkpoint has brought, though the decision has no error feedback."""
        self._sent = self._cleared = False
        if self.state.residual is None and self._may_claim():
            self._bind(self._own())

    @property
    def alike(self) -> tuple[str, ...]:
        """Kinds of what is remembered that are to be the same on all ranks."""
        return (*self.collective.compressor.alike, *((RESULT_SUM,) if self.allocates_sum and self.shares_sum else ()))

    def share(self, broadcast: Callable[[torch.Tensor], None]) -> None:
        """Take over from another rank what is to be the same on all ranks: `broadcast` puts it in a tensor's place.

        Called alike on all ranks, as often as the layout says, with flat tensors on the CPU that are not empty.
        """
        own, current = self._own(), self.state.current
        for kind in self.alike:
            keys = [key for key in own if key[0] == kind]  # in an order that is the same on all ranks
            flat = torch.cat([current[key].reshape(-1).cpu() for key in keys]) if keys else torch.empty(0)
            if flat.numel():
                broadcast(flat)
                parts = torch.split(flat, [current[key].numel() for key in keys])
                for key, part in zip(keys, parts, strict=True):
                    current[key] = part.view(current[key].shape).to(current[key].device)
        self.shares_sum = False

    def _may_claim(self) -> bool:
        """Whether there is a residual of these parameters that can be sent with their gradient."""
        sends = not self.layout.sparse and self.layout.dtype != torch.float64
        return sends and self.states.has_residual(self.layout.names)

    def start(
        self,
        gradient: torch.Tensor,
        step: int,
        scale: float,
        rank: int,
        world_size: int,
        hosts: tuple[int, ...] = (),
        coefficient: float = 1.0,
    ) -> Exchange:
        """Return the exchange of this step, of what hold() was given.

        Args:
            gradient: the bucket's, or a parameter's, where that is sparse.
            scale: what the sum over ranks is multiplied by.
            hosts: by rank, where it runs.
            coefficient: what the residual is multiplied by.
        """
        self.state.keep()
        work = Work(
            gradient=gradient if self._workspace is None else self._workspace,
            layout=self.layout,
            step=step,
            bucket=self.number,
            scale=scale,
            rank=rank,
            coefficient=coefficient,
            world_size=world_size,
            state=self.state,
            lane=self.lane,
            probe=self.probe,
            hosts=hosts,
        )
        exchange = self.collective.exchange(work, rank, world_size)
        if not self.collective.keeps_gradient:  # the exchange alone holds it, as long as it needs it
            self.release_gradient()
        looks = not self.layout.sparse and (self.probe.ks is not None or self.probe.norm)
        return Observed(exchange, work, self.collective.error_feedback) if looks else exchange

    def release_gradient(self) -> None:
        """Hold the bucket's memory no more."""
        self.flat = self._workspace = None

    def hold(self, flat: torch.Tensor) -> None:
        """Work on this memory, in which the bucket's gradient lies."""
        if self.flat is not None and self.flat.data_ptr() == flat.data_ptr():
            return
        residual = self.state.residual
        kept = residual.memory if residual is not None else ()
        self.flat, self._workspace = flat, self.lane.workspace(flat, *kept)

    def forget(self) -> None:
        """The step is over: what its exchange holds is not needed any more."""
        self.report, self.launched = ProbeReport(), False
