"""AR-Topk: one rank's top-k indices, everybody's values at them, summed by an allreduce."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.collectives.probe import ProbeReport, RootStats
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite, nan_unless
from hvd_compress.compressors.sparsifier import FixedRatio
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.errors import PayloadError, located, received
from hvd_compress.payload import Payload

VALUE_BYTES = 4
"""Values are summed in fp32, whatever the gradient's dtype."""
NORM_BYTES = 8


@dataclass(frozen=True)
class ARTopk(Collective):
    """Algorithm 1 of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning", on a fused bucket.

    The path's collective says whose indices are used: "star" takes rank step % N, "var" the rank whose selected values
    have the largest squared norm (lowest rank among equals). "artopk" leaves that open, for pricing.

    The path's `algorithm` is that of the allreduce, its `broadcast` that of the broadcast.

    Bytes sent by a rank, on average: (N-1)/N * 4 * k for the broadcast of indices (more for "scatter_allgather", fewer
    where they are coded), and those of the engine's allreduce of 4 * k bytes; "var" adds an all-gather of 8 bytes.
    Rounded values could not be summed: what sends such travels by all-gather.
    """

    compressor: FixedRatio
    path: Path = Path("star")
    names = ("star", "var", "artopk")
    verb = "allreduce"
    broadcasts = True

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return isinstance(compressor, FixedRatio) and compressor.values == "fp32"

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        if not cls.carries(compressor):
            return ()
        ways = [(name, way) for name in ("auto", *can.algorithms) for way in ("auto", *can.broadcasts)]
        return [Path(selection, *way) for selection in ("star", "var") for way in ways]

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Eq. 4: a broadcast of indices, an allreduce of values."""
        k = self.compressor.kept(layout)
        norms = (Stage("allgather", "auto", NORM_BYTES),) if self.path.collective == "var" else ()
        index_bytes = self.compressor.coding.index_bytes(layout.numel, k)
        indices = Stage("broadcast", self.path.broadcast, index_bytes)
        return (*norms, indices, Stage("allreduce", self.path.algorithm, k * VALUE_BYTES))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        kind = _VarExchange if self.path.collective == "var" else _StarExchange
        return kind(self, work, rank, world_size)


class _ARTopkExchange(Exchange):
    """What both ways to choose the worker share: broadcast, take, allreduce."""

    def __init__(self, collective: ARTopk, work: Work, rank: int, world_size: int) -> None:
        assert work.pending is not None
        self._collective, self._work, self._rank, self._world_size = collective, work, rank, world_size
        self._pending = work.pending
        # What every rank expects from the chosen one.
        self._kept, numel = collective.compressor.kept(work.layout), work.gradient.numel()
        self._expected = Payload(collective.compressor.coding.index_template(numel, self._kept), numel)
        self._packed: torch.Tensor
        self._indices: torch.Tensor
        self._sum: torch.Tensor | None = None
        self._finite: bool | torch.Tensor = True

    def encode(self) -> None:
        self._packed = self._work.lane.buffer("indices", self._expected.packed_bytes, torch.uint8)
        self._compress()

    @abstractmethod
    def _compress(self) -> None:
        """Do with the gradient what comes before the first collective."""

    @property
    def _residual(self) -> torch.Tensor:
        residual = self._work.residual
        assert residual is not None
        return residual

    def _accumulate(self) -> None:
        self._finite = native.accumulate(self._work.gradient, self._residual, out=self._pending)

    def _pack(self, payload: Payload) -> None:
        work = self._work
        selection = Payload({name: payload[name] for name in self._expected.tensors}, payload.numel)
        selection.pack(work.step, work.bucket, self._packed, work.lane.place)

    def _share(self, engine: Engine, root: int) -> None:
        work, lane = self._work, self._work.lane
        engine.broadcast(self._packed, root, self._collective.path.broadcast)
        with located(f"indices from rank {root}"), lane.between_collectives():
            packed = lane.fetch(self._packed)
            selection = self._expected.unpack(packed, work.step, work.bucket, header=self._packed)
            with native.about(f"bucket {work.bucket}, indices from rank {root}"):
                self._indices = self._collective.compressor.coding.decode_indices(selection, self._kept)
                if self._indices.numel() != self._kept:
                    raise PayloadError(f"{self._indices.numel()} indices instead of {self._kept}")
                if self._sum is None:
                    values = self._take()
                    self._record(root, values)
                    self._sum = lane.post("values", values)
        engine.allreduce(self._sum, self._collective.path.algorithm)

    def _record(self, root: int, values: torch.Tensor) -> None:
        if self._work.probe.root_stats:
            stats = RootStats(root, torch.linalg.vector_norm(values).double().square())
            self.report = replace(self.report, root_stats=stats)

    def _take(self) -> torch.Tensor:
        """This rank's values; NaN where the bucket is not finite."""
        return nan_unless(self._finite, self._collective.compressor.take(self._pending, self._indices))

    def decode(self) -> torch.Tensor:
        assert self._sum is not None
        gradient, values = self._work.gradient, self._work.lane.fetch(self._sum)
        with received():
            native.scatter_lists([(self._indices, values)], gradient, self._work.scale, clear=True)
            return all_finite(native.gather(gradient, self._indices))


class _StarExchange(_ARTopkExchange):
    """Only the rank whose turn it is selects; the others add their residual and wait."""

    def _compress(self) -> None:
        work = self._work
        self._root = work.step % self._world_size
        self.report = ProbeReport(on_critical_path=self._rank == self._root)
        if self._rank != self._root:
            self._accumulate()
            return
        compressor = self._collective.compressor
        payload = compressor.compress_feedback(work.gradient, self._residual, self._pending, work.layout)
        self._pack(payload)
        self._record(self._root, payload["values"])
        # NaN and Inf are the largest of all, so they are among these.
        self._sum = work.lane.post("values", payload["values"])

    def communicate(self, engine: Engine) -> None:
        self._share(engine, self._root)


class _VarExchange(_ARTopkExchange):
    """All ranks select, and compare how much they found."""

    def _compress(self) -> None:
        self._accumulate()
        payload = self._collective.compressor.compress(self._pending, self._work.layout)
        self._pack(payload)
        self._variance = self._work.lane.post("variance", payload["values"].double().square().sum().reshape(1))

    def communicate(self, engine: Engine) -> None:
        variances = torch.cat(engine.allgather(self._variance, [1] * self._world_size))
        self._share(engine, int(variances.argmax()))
