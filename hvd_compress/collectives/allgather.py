"""All-gather: every rank's payload to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.collectives.packed import Packer, check_size
from hvd_compress.compressors.base import Compressor, Requantizer, Round, finish
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import Lengths
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class AllGather(Collective):
    """One all-gather of payloads a round, decompressed and added in rank order.

    Bytes sent by a rank: (N-1) * payload, which for top-k is 8 * k, or fewer.
    """

    compressor: Compressor
    path: Path = Path("allgather")
    names = ("allgather",)
    verb = "allgather"

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return compressor.compresses

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        if not cls.carries(compressor):
            return ()
        # Libraries can be told an algorithm where all lengths are equal.
        forced = can.allgathers if compressor.is_fixed(layout) else ()
        return [Path("allgather", algorithm) for algorithm in ("auto", *forced)]

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        rounds = self.compressor.wire(layout)
        return tuple(Stage("allgather", self.path.algorithm, round_.priced) for round_ in rounds)

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _AllGatherExchange(self, work, world_size)


class _AllGatherExchange(Exchange):
    def __init__(self, collective: AllGather, work: Work, world_size: int) -> None:
        self._work, self._world_size, self._algorithm = work, world_size, collective.path.algorithm
        self._rounds, self._wire = collective.compressor.rounds(work), collective.compressor.wire(work.layout)
        self._own: Payload
        self._compressor = collective.compressor
        self._packer = Packer(work, self._compressor.is_fixed(work.layout))
        self._packed: torch.Tensor
        self._received: list[torch.Tensor] = []

    def encode(self) -> None:
        send_residual(self._compressor, self._work)
        self._pack(next(self._rounds), 0)

    def _pack(self, payload: Payload, number: int) -> None:
        check_size(self._compressor, self._wire[number], payload)
        self._own = payload
        self._packed = self._packer.pack(f"sent {number}", payload)

    def communicate(self, engine: Engine) -> None:
        for number, round_ in enumerate(self._wire):
            lengths = self._lengths(engine, round_)
            inbox = self._packer.inbox(f"received {number}", lengths)
            self._received = engine.allgather(self._packed, lengths, self._algorithm, out=inbox)
            if number < len(self._wire) - 1:
                with self._work.lane.between_collectives():
                    self._pack(self._rounds.send(self._unpacked()), number + 1)

    def _lengths(self, engine: Engine, round_: Round) -> Lengths:
        if round_.fixed:  # every rank's payload has this length, since all have the same layout and settings
            return [self._packed.numel()] * self._world_size
        if not isinstance(self._compressor, Requantizer):  # whose most is the whole gradient
            return None
        most = [self._compressor.template(self._work.gradient.numel()).packed_bytes] * self._world_size
        return self._packer.lengths(engine, most, most)

    def _unpacked(self) -> list[Payload]:
        received = enumerate(self._received)
        return [self._packer.unpack(rank, buffer, self._own) for rank, buffer in received]

    def decode(self) -> torch.Tensor:
        finish(self._rounds, self._unpacked())
        return all_finite(self._work.gradient)
