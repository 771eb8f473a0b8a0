"""A bucket with all that its way takes: the decision, the scheme that carries it out, and what is remembered."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.buckets.bucket import Bucket
from hvd_compress.controller.report import Timing
from hvd_compress.controller.sights import Sight
from hvd_compress.cost.kept import kept
from hvd_compress.decision import Decision
from hvd_compress.devices import Lane
from hvd_compress.feedback.states import BucketState
from hvd_compress.schemes import Exchange, Observed, Scheme, Work


@dataclass(eq=False)
class Route:
    """One bucket, from step to step.

    Attributes:
        number: its place in the order in which buckets leave.
        workspace: where its gradient lies for the lane.
        launched: whether it has left in this step.
        watched: whether AR-Topk says in the coming step what it saw.
        note: what this rank says to the others in the coming step.
        exchange: of this step.
        observed: the same, where gains are looked at.
    """

    number: int
    bucket: Bucket
    decision: Decision
    scheme: Scheme
    state: BucketState
    lane: Lane
    workspace: torch.Tensor
    launched: bool = False
    watched: bool = False
    note: int = 0
    exchange: Exchange | None = None
    observed: Observed | None = None

    @property
    def name(self) -> str:
        """Its first parameter, and how many there are beside it."""
        return called(self.bucket.layout.names)

    def decide(self, decision: Decision) -> None:
        """Travel so from the coming step on."""
        if decision != self.decision:
            self.scheme = decision.build()
        self.decision = decision

    def leave(
        self, step: int, scale: float, rank: int, world_size: int, looking: tuple[float, ...] | None = None
    ) -> Exchange:
        """Return the exchange of this step.

        Args:
            scale: what the sum over ranks is multiplied by.
            looking: ratios whose gains are to be read, perhaps none; None where gains are not looked at.
        """
        work = Work(
            gradient=self.workspace,
            layout=self.bucket.layout,
            step=step,
            bucket=self.number,
            scale=scale,
            state=self.state,
            lane=self.lane,
            watched=self.watched,
            note=self.note,
        )
        self.exchange = self.scheme.exchange(work, rank, world_size)
        if looking is None:
            return self.exchange
        self.observed = Observed(self.exchange, work, [kept(self.bucket.layout.numel, ratio) for ratio in looking])
        return self.observed

    def forget(self) -> None:
        """The step is over: what its exchange holds is not needed any more."""
        self.exchange = self.observed = None

    @property
    def heard(self) -> int:
        """What ranks had to say in the step that is over."""
        return self.exchange.heard if self.exchange is not None else 0

    def timing(self, passed: tuple[float, float, float, float]) -> Timing:
        """Return what the exchange took, without what it took to look at it; `passed` is one of Exchanged.timings."""
        before_s, after_s = (self.observed.before_s, self.observed.after_s) if self.observed else (0.0, 0.0)
        compress_s, communicate_s, decompress_s, began_s = passed
        leads = self.exchange is None or self.exchange.leads
        return Timing(compress_s - before_s, communicate_s, decompress_s - after_s, began_s, leads)

    def sight(self, passed: tuple[float, float, float, float]) -> Sight | None:
        """Return what this rank saw of the step that is over; the host may wait for a GPU here."""
        exchange, residual = self.exchange, self.state.residual
        if not self.watched or exchange is None or exchange.picked is None or residual is None:
            return None
        left = float(residual.square_norm())
        return Sight(exchange.picked.root, float(exchange.picked.sent), left, self.timing(passed).seconds)


def called(names: tuple[str, ...]) -> str:
    """Return what parameters that travel together are called in messages."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
