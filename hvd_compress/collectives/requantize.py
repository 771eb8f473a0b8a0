"""Owners of shards: what all ranks send of a shard is summed by its owner, compressed again, and sent to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors.base import Compressor, Requantizer
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard
from hvd_compress.errors import UnsupportedError
from hvd_compress.payload import Payload

ALLTOALL, GATHER = "alltoall-allgather", "gather-broadcast"
ROOT = 0
"""Owns everything in a gather and broadcast."""


@dataclass(frozen=True)
class Requantize(Collective):
    """Each rank owns a shard of the bucket, or one rank owns all of it.

    1. Every rank compresses what others own, and sends it to its owner.
    2. The owner adds its own gradient, uncompressed, and what it received, in fp32 and in rank order.
    3. It compresses the sum, keeps what that loses, and sends it to all.

    Bytes sent by a rank, with a payload of P bytes and N ranks:

    | path               | collectives                        | bytes                          |
    | alltoall-allgather | all-to-all of P, all-gather of P/N | 2 (N-1)/N P                    |
    | gather-broadcast   | gather of P, broadcast of P        | (N-1)/N P, and the broadcast's |
    """

    compressor: Compressor
    path: Path = Path(ALLTOALL)
    names = (ALLTOALL, GATHER)

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return isinstance(compressor, Requantizer)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        if not cls.carries(compressor):
            return ()
        needs = {ALLTOALL: {"alltoall", "allgather"}, GATHER: {"gather", "broadcast"}}
        names = [name for name in cls.names if needs[name] <= set(can.verbs)]
        if not compressor.is_fixed(layout):  # all must know how much they get from a broadcast
            names = [name for name in names if name != GATHER]
        return [Path(name) for name in names]

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        sent = sum(round_.priced for round_ in self.compressor.wire(layout))
        if self.path.collective == GATHER:
            return (Stage("gather", "auto", sent), Stage("broadcast", "auto", sent))
        return (Stage("alltoall", "auto", sent), Stage("allgather", "auto", sent / world_size))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert isinstance(self.compressor, Requantizer)
        if self.path.collective == GATHER and not self.compressor.is_fixed(work.layout):
            raise UnsupportedError(f"{GATHER} needs payloads of one length, and those of {self.compressor} differ")
        kind = _RootExchange if self.path.collective == GATHER else _OwnersExchange
        return kind(self.compressor, work, rank, world_size)


class _RequantizeExchange(Exchange):
    """What both paths share."""

    def __init__(self, compressor: Requantizer, work: Work, rank: int, world_size: int) -> None:
        self._compressor, self._work, self._rank, self._world_size = compressor, work, rank, world_size
        self._packer = Packer(work, compressor.is_fixed(work.layout))

    def _unpack(self, rank: int, packed: torch.Tensor, part: slice) -> Payload:
        return self._packer.unpack(rank, packed, self._compressor.template(_numel(part)))

    def _packed_bytes(self, part: slice) -> int:
        return self._compressor.template(_numel(part)).packed_bytes


class _OwnersExchange(_RequantizeExchange):
    def encode(self) -> None:
        compressor, work = self._compressor, self._work
        send_residual(compressor, work)
        self._shards = shards(work.gradient.numel(), self._world_size, compressor.granule)
        self._outgoing: list[torch.Tensor] = []
        for owner, part in enumerate(self._shards):
            if owner == self._rank:
                compressor.keep_shard(work, part)
                self._outgoing.append(work.lane.buffer("own", 0, torch.uint8))
            else:
                self._outgoing.append(self._packer.pack(f"to {owner}", compressor.encode_shard(work, part, owner)))

    def communicate(self, engine: Engine) -> None:
        own, packer = self._shards[self._rank], self._packer
        lengths = [0 if rank == self._rank else self._packed_bytes(own) for rank in range(self._world_size)]
        sent = [self._packed_bytes(part) for part in self._shards]
        received = engine.alltoall(self._outgoing, packer.lengths(engine, sent, lengths))
        with self._work.lane.between_collectives():
            others = [self._unpack(rank, buffer, own) for rank, buffer in enumerate(received) if rank != self._rank]
            packed = packer.pack("sum", self._compressor.sum_shard(self._work, own, others))
        sums = packer.lengths(engine, [sent[self._rank]] * self._world_size, sent)
        self._received = engine.allgather(packed, sums, out=packer.inbox("sums", sums))

    def decode(self) -> torch.Tensor:
        received = enumerate(zip(self._received, self._shards, strict=True))
        return self._compressor.write(
            self._work, [(part, [self._unpack(rank, buffer, part)]) for rank, (buffer, part) in received]
        )


class _RootExchange(_RequantizeExchange):
    def encode(self) -> None:
        compressor, work = self._compressor, self._work
        send_residual(compressor, work)
        self._everything = slice(0, work.gradient.numel())
        if self._rank == ROOT:
            compressor.keep_shard(work, self._everything)
            # Of the others' length: engines count bytes of a gather by it. Nobody reads it.
            self._packed = work.lane.buffer("sum", self._packed_bytes(self._everything), torch.uint8)
        else:
            self._packed = self._packer.pack("sum", compressor.encode_shard(work, self._everything, ROOT))

    def communicate(self, engine: Engine) -> None:
        received = engine.gather(self._packed, ROOT, [self._packed.numel()] * self._world_size)
        if received is not None:
            with self._work.lane.between_collectives():
                others = [
                    self._unpack(rank, buffer, self._everything) for rank, buffer in enumerate(received) if rank != ROOT
                ]
                payload = self._compressor.sum_shard(self._work, self._everything, others)
                self._packed = self._packer.pack("sum", payload)
        engine.broadcast(self._packed, ROOT)

    def decode(self) -> torch.Tensor:
        payload = self._unpack(ROOT, self._packed, self._everything)
        return self._compressor.write(self._work, [(self._everything, [payload])])


def shards(numel: int, world_size: int, granule: int) -> list[slice]:
    """Return what each rank owns, in rank order: equal numbers of granules, or one more; perhaps nothing."""
    owned = [shard(-(-numel // granule), world_size, rank) for rank in range(world_size)]
    return [slice(min(numel, part.start * granule), min(numel, part.stop * granule)) for part in owned]


def _numel(part: slice) -> int:
    return int(part.stop - part.start)
