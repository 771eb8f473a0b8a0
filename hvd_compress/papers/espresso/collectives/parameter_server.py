"""Parameter server: one rank receives all payloads and sends the sum to all, whole; the baseline of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.collectives.packed import Packer, check_size
from hvd_compress.compressors.base import Compressor, SingleRound
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine

SERVER = 0


@dataclass(frozen=True)
class ParameterServer(Collective):
    """Gather to rank 0, which sums what it decompresses in fp32, in rank order; broadcast in the gradient's dtype.

    Bytes sent by a rank on average, with a payload of P bytes and M bytes of gradient: (N-1)/N (P + M). It is priced
    with the linear broadcast of Table I of Tyagi and Swany, 2 steps and (N-1) (P + M) bytes; engines send the sum along
    a tree.
    """

    compressor: Compressor
    path: Path = Path("parameter-server")
    names = ("parameter-server",)
    by_name = True

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return isinstance(compressor, SingleRound) and compressor.adds_up

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        runs = cls.carries(compressor) and {"gather", "broadcast"} <= set(can.verbs)
        return (Path("parameter-server"),) if runs else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        sent = sum(round_.priced for round_ in self.compressor.wire(layout))
        return (Stage("gather", "auto", sent), Stage("broadcast", "linear", layout.nbytes))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert isinstance(self.compressor, SingleRound)
        return _ServerExchange(self.compressor, work, world_size)


class _ServerExchange(Exchange):
    def __init__(self, compressor: SingleRound, work: Work, world_size: int) -> None:
        self._compressor, self._work, self._world_size = compressor, work, world_size
        (self._round,) = compressor.wire(work.layout)
        self._packer = Packer(work)
        self._result: torch.Tensor

    def encode(self) -> None:
        send_residual(self._compressor, self._work)
        self._own = next(self._compressor.rounds(self._work))
        check_size(self._compressor, self._round, self._own)
        self._packed = self._packer.pack("to the server", self._own)

    def communicate(self, engine: Engine) -> None:
        work, lane = self._work, self._work.lane
        lengths = [self._packed.numel()] * self._world_size if self._round.fixed else None
        received = engine.gather(self._packed, SERVER, lengths)
        with lane.between_collectives():
            if received is None:
                self._result = lane.buffer("result", work.gradient.numel(), work.gradient.dtype)
            else:
                self._rounded = self._sum(received)
                self._result = lane.post("result", self._rounded)
        engine.broadcast(self._result, SERVER)

    def _sum(self, received: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return scale times the sum of what ranks sent, in the gradient's dtype."""
        work = self._work
        total = torch.empty_like(work.gradient, dtype=torch.float32)
        payloads = [self._packer.unpack(rank, packed, self._own) for rank, packed in enumerate(received)]
        self._compressor.sum_into(total, payloads, work.scale, work.layout)
        return total.to(work.gradient.dtype)

    def decode(self) -> torch.Tensor:
        return all_finite(self._work.lane.fetch(self._result, into=self._work.gradient))
