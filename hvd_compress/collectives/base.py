"""What every collective promises, and the bucket that it works on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.probe import Probe, ProbeReport
from hvd_compress.compressors.base import Compressor, Input
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState


@dataclass(frozen=True)
class Work(Input):
    """One bucket in one step, with its lane.

    Attributes:
        lane: what leads to the engine and back; engines take no tensor that did not come from it.
        probe: what the policy wants to know of this exchange.
        hosts: by rank the number of its host, as `Engine.hosts`; empty where nobody has asked.
    """

    lane: Lane = HOST
    probe: Probe = Probe()
    hosts: tuple[int, ...] = ()

    def of_part(self, part: slice) -> Work:
        """Return the same of a part of the bucket's elements, by views."""
        state = BucketState()
        if self.residual is not None and self.pending is not None:
            state = BucketState(Residual(self.residual[part], self.pending[part]))
        return replace(
            self,
            gradient=self.gradient[part],
            layout=self.layout.part(part, self.layout.dtype),
            state=state,
            coefficient=1.0,  # the residual is multiplied by it already
        )


class Exchange(ABC):
    """The three phases of one bucket's way through a collective, called once each, in this order.

    Attributes:
        report: what is known of it after decode(), the answer to work.probe.
        result: after decode(), the result, where it does not lie in work.gradient.
        is_light: whether encode() and decode() take less than handing them to another thread does.
        sends: whether communicate() launches anything; the same on every rank.
    """

    report: ProbeReport = ProbeReport()
    result: torch.Tensor | None = None
    is_light: bool = False
    sends: bool = True

    @abstractmethod
    def encode(self) -> None:
        """Compress what this rank has. Runs within lane.encoding(), while other buckets communicate."""

    @abstractmethod
    def communicate(self, engine: Engine) -> None:
        """Launch the collectives, the same on every rank. Runs within lane.communicating(), in the thread for it."""

    @abstractmethod
    def decode(self) -> torch.Tensor:
        """Write scale * sum over ranks to work.gradient; return whether all of it is finite, as a tensor () of bool.

        Runs within lane.decoding(). The answer is the same on every rank: it depends on what all ranks received alone.
        Nobody looks into it before all buckets are there. After this work.pending holds corrected - transmitted.
        """


class Collective(ABC):
    """Answers: who sends what, in which rounds?

    A collective is a frozen dataclass: a compressor, and a path that names the collective and the algorithms of its
    collectives. `collectives/registry.py` lists those of the core.

    Attributes:
        names: what a path's collective may be to mean this one.
        verb: of its main collective, whose algorithm the path names; None where it has none to choose from.
        broadcasts: whether the path names the algorithm of a broadcast, too.
        by_name: whether it runs only where it is asked for by name: "auto" does not choose it.
        named: whether a request may name it; others a gradient or a policy asks for.
        in_groups: whether it launches collectives in groups of ranks, which `Engine.group` makes.
        replaces: the collective of an uncompressed gradient that it stands for.
        in_fp32: whether it sums in fp32, whatever the gradient's dtype.
        averages: whether the result is the same on all ranks.
        keeps_gradient: whether the bucket's memory is needed until the step is over, and the result lies there.
    """

    names: ClassVar[tuple[str, ...]]
    verb: ClassVar[str | None] = None
    broadcasts: ClassVar[bool] = False
    in_fp32: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    named: ClassVar[bool] = True
    in_groups: ClassVar[bool] = False
    averages: ClassVar[bool] = True
    keeps_gradient: ClassVar[bool] = True
    replaces: ClassVar[str] = "allreduce"
    compressor: Compressor
    path: Path

    @property
    def error_feedback(self) -> bool:
        """Whether what is not sent is remembered."""
        return self.compressor.error_feedback

    def unsent(self, layout: Layout) -> Sequence[str]:
        """Return the parameters that are to have no gradient after the step, as nothing of them is sent."""
        return ()

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        """Whether payloads of this compressor can travel so, over an engine that can do all."""
        return True

    @classmethod
    def obstacle(cls, can: Capabilities) -> str:
        """Say what this collective misses in an engine, beside verbs, or return nothing."""
        return ""

    @classmethod
    @abstractmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        """Return the paths by which it can carry a compressor over an engine, perhaps none; "auto" first."""

    @classmethod
    def means(cls, name: str) -> bool:
        """Whether a path with a collective of this name means this one. Raises ConfigError for one that nearly does."""
        return name in cls.names

    @classmethod
    def runs(cls, compressor: Compressor, path: Path, layout: Layout, can: Capabilities) -> bool:
        """Whether it can carry a compressor by a path over an engine. Raises ConfigError that says why it cannot."""
        return path in cls.variants(compressor, layout, can)

    @abstractmethod
    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Return the collectives of one step in the order in which they run, for pricing."""

    def stages_on(self, layout: Layout, hosts: Sequence[int]) -> tuple[Stage, ...]:
        """Return the same for ranks on these hosts; most collectives do not heed them."""
        return self.stages(layout, len(hosts))

    @abstractmethod
    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        """Return the exchange of one bucket in one step."""


def send_residual(compressor: Compressor, work: Work) -> None:
    """Where a compressor without error feedback meets a residual, from before another decision, add it to the gradient.

    Nothing is remembered afterwards but what rounding to the gradient's dtype takes.
    """
    if compressor.error_feedback:
        return
    gradient, residual, pending = work.gradient, work.residual, work.pending
    if residual is None or pending is None:
        return
    if gradient.dtype == residual.dtype:
        native.accumulate(gradient, residual, out=gradient)
        pending.zero_()
    else:
        native.accumulate(gradient, residual, out=pending)
        gradient.copy_(pending)
        pending.sub_(gradient)


def add_residual(work: Work, values: torch.Tensor, part: slice) -> None:
    """Add what is remembered of a part of the bucket to `values`, fp32, which are sent whole: nothing is left of it.

    `values` is (numel,) of the whole bucket, and perhaps its gradient.
    """
    if work.residual is not None and work.pending is not None:
        native.accumulate(values[part], work.residual[part], out=values[part])
        work.pending[part].zero_()
