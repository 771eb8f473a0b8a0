"""All-to-all and all-gather: a dense exchange in types that an engine cannot sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.compressors.summed import headroom
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.devices.lane import HOST
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard_lengths


@dataclass(frozen=True)
class AllToAll(Collective):
    """Each rank owns a shard of the bucket: it receives it from all, sums it in fp32, and sends the rounded sum back.

    The owner, too, keeps the rounded result, so that replicas stay equal. Bytes sent by a rank, with M bytes of
    payload: (N-1)/N * M in each of the two rounds, as much as a ring, with one rounding instead of N-1. An engine that
    moves pieces best (`Engine.piece_bytes`) is given both rounds of one piece after the other: as many bytes, the same
    bits, more calls.
    """

    compressor: Compressor
    path: Path = Path("alltoall")
    names = ("alltoall",)

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return not compressor.compresses

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return [Path("alltoall")] if cls.carries(compressor) and "alltoall" in can.verbs else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        (sent,) = self.compressor.wire(layout)
        return (Stage("alltoall", "auto", sent.nbytes), Stage("allgather", "auto", sent.nbytes / world_size))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _AllToAllExchange(self, work, rank, world_size)


class _AllToAllExchange(Exchange):
    """Where the host compresses, each piece is rounded, exchanged and written back while it is in the cache."""

    def __init__(self, collective: AllToAll, work: Work, rank: int, world_size: int) -> None:
        self._collective, self._work, self._rank, self._world_size = collective, work, rank, world_size
        (sent,) = collective.compressor.wire(work.layout)
        assert sent.sum_dtype is not None
        self._dtype = sent.sum_dtype
        self._values: torch.Tensor
        self._own: torch.Tensor
        self._finite: list[torch.Tensor] = []
        self.is_light = work.state.residual is None

    def encode(self) -> None:
        send_residual(self._collective.compressor, self._work)
        on_host = self._work.lane is HOST
        self._values = self._work.gradient if on_host else self._work.gradient.to(self._dtype)
        self._own = self._work.lane.post("values", self._values)

    def communicate(self, engine: Engine) -> None:
        most = engine.piece_bytes // self._dtype.itemsize if engine.piece_bytes is not None else self._own.numel()
        for piece in torch.split(self._own, max(1, most)):
            piece.copy_(self._exchanged(piece.to(self._dtype), engine))
            self._finite.append(all_finite(piece))

    def _exchanged(self, values: torch.Tensor, engine: Engine) -> torch.Tensor:
        """Return scale * sum over ranks of a piece, rounded once; `values` holds it then."""
        lengths = shard_lengths(values.numel(), self._world_size)
        received = engine.alltoall(torch.split(values, lengths), [lengths[self._rank]] * self._world_size)
        factor = headroom(self._work.scale)  # bfloat16 reaches as far as fp32
        total = received[0].float().mul_(factor)
        for part in received[1:]:  # in rank order: the sum is the same in every run
            total.add_(part, alpha=factor)
        total *= self._work.scale / factor
        engine.allgather(total.to(self._dtype), lengths, out=values)
        return values

    def decode(self) -> torch.Tensor:
        self._work.gradient.copy_(self._work.lane.fetch(self._own, into=self._values))
        return torch.stack(self._finite).all()
