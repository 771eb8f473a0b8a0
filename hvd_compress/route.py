"""A bucket with all that its way takes: the decision, the scheme that carries it out, and what is remembered."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.buckets.bucket import Bucket
from hvd_compress.controller.report import Timing
from hvd_compress.controller.sights import Sight
from hvd_compress.decision import Decision
from hvd_compress.devices import Lane
from hvd_compress.feedback.states import BucketState
from hvd_compress.pipeline import PhaseSpans
from hvd_compress.schemes import Exchange, Observed, Probe, ProbeReport, Scheme, Work


@dataclass(eq=False)
class Route:
    """One bucket, from step to step.

    Attributes:
        number: its place in the order in which buckets leave.
        workspace: where its gradient lies for the lane.
        launched: whether it has left in this step.
        probe: what is to be known of the exchange of the coming step.
        exchange: of this step.
    """

    number: int
    bucket: Bucket
    decision: Decision
    scheme: Scheme
    state: BucketState
    lane: Lane
    workspace: torch.Tensor
    launched: bool = False
    probe: Probe = Probe()
    exchange: Exchange | None = None

    @property
    def name(self) -> str:
        """Its first parameter, and how many there are beside it."""
        return called(self.bucket.layout.names)

    def decide(self, decision: Decision) -> None:
        """Travel so from the coming step on."""
        if decision != self.decision:
            self.scheme = decision.build()
        self.decision = decision

    def leave(self, step: int, scale: float, rank: int, world_size: int) -> Exchange:
        """Return the exchange of this step. `scale` is what the sum over ranks is multiplied by."""
        work = Work(
            gradient=self.workspace,
            layout=self.bucket.layout,
            step=step,
            bucket=self.number,
            scale=scale,
            state=self.state,
            lane=self.lane,
            probe=self.probe,
        )
        exchange = self.scheme.exchange(work, rank, world_size)
        self.exchange = exchange if self.probe.ks is None else Observed(exchange, work)
        return self.exchange

    def forget(self) -> None:
        """The step is over: what its exchange holds is not needed any more."""
        self.exchange = None

    @property
    def report(self) -> ProbeReport:
        """What is known of the exchange that is over."""
        return self.exchange.report if self.exchange is not None else ProbeReport()

    def timing(self, spans: PhaseSpans) -> Timing:
        """Return what the exchange took, without what it took to look at it."""
        report, sample = self.report, self.report.sample
        before_s, after_s = (sample.before_s, sample.after_s) if sample is not None else (0.0, 0.0)
        compress_s, decompress_s = spans.compress_s - before_s, spans.decompress_s - after_s
        return Timing(compress_s, spans.communicate_s, decompress_s, spans.communicate[0], report.on_critical_path)

    def sight(self, spans: PhaseSpans) -> Sight | None:
        """Return what this rank saw of the step that is over; the host may wait for a GPU here."""
        stats, residual = self.report.root_stats, self.state.residual
        if stats is None or residual is None:
            return None
        left = float(residual.square_norm())
        return Sight(stats.root, float(stats.sent), left, self.timing(spans).seconds)


def called(names: tuple[str, ...]) -> str:
    """Return what parameters that travel together are called in messages."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
