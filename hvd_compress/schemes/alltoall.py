"""All-to-all and all-gather: a dense exchange in types that an engine cannot sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard
from hvd_compress.schemes.base import Exchange, Scheme, Work, send_residual


@dataclass(frozen=True)
class AllToAll(Scheme):
    """Each rank owns a shard of the bucket: it receives it from all, sums it in fp32, and sends the rounded sum back.

    The owner, too, keeps the rounded result, so that replicas stay equal. Bytes sent by a rank, with M bytes of
    payload: (N-1)/N * M in each of the two rounds, as much as a ring, with one rounding instead of N-1.
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
    def __init__(self, scheme: AllToAll, work: Work, rank: int, world_size: int) -> None:
        self._scheme, self._work, self._rank, self._world_size = scheme, work, rank, world_size
        self._values: torch.Tensor
        self._own: torch.Tensor

    def encode(self) -> None:
        send_residual(self._scheme.compressor, self._work)
        payload = next(self._scheme.compressor.rounds(self._work))
        assert payload.summable
        (self._values,) = payload.tensors.values()
        self._own = self._work.lane.post("values", self._values)

    def communicate(self, engine: Engine) -> None:
        shards = [self._own[shard(self._own.numel(), self._world_size, r)] for r in range(self._world_size)]
        received = engine.alltoall(shards)
        total = torch.zeros(received[0].numel(), dtype=torch.float32, device=received[0].device)
        for part in received:  # in rank order: the sum is the same in every run
            total += part
        total *= self._work.scale
        engine.allgather(total.to(self._own.dtype), [part.numel() for part in shards], out=self._own)

    def decode(self) -> torch.Tensor:
        self._work.gradient.copy_(self._work.lane.fetch(self._own, into=self._values))
        return all_finite(self._work.gradient)
