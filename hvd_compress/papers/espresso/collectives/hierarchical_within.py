"""Hierarchical, with compression within a host: payloads go to the first rank, and it exchanges sums or payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Exchange, Work, send_residual
from hvd_compress.collectives.groups import LEADER
from hvd_compress.collectives.hierarchical import Hierarchical, HierarchicalExchange
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors.base import Compressor, SingleRound
from hvd_compress.compressors.cast import Cast
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.errors import located
from hvd_compress.feedback.states import GRADIENT_UNITS
from hvd_compress.payload import Payload

WITHIN, BOTH = "hierarchical-within", "hierarchical-both"


@dataclass(frozen=True)
class HierarchicalWithin(Hierarchical):
    """As Hierarchical, and what travels to the leader is compressed; across hosts it is (-both) or it is not (-within).

    Instead of the allreduce the leader gathers payloads of its host, and adds its own gradient, uncompressed, and
    theirs, in rank order. The others remember what their payloads lose, the leader what is lost across hosts; where
    nothing is, its residual is sent along.

    Bytes sent by a rank on average, with a payload of P bytes: (L-1)/L (P + M) within its host. Across hosts the
    leaders exchange payloads (-both), or allreduce 4n bytes (-within).
    """

    path: Path = Path(BOTH)
    names = (WITHIN, BOTH)

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return compressor.compresses and _is_gradient(compressor)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return super().variants(compressor, layout, can) if "gather" in can.verbs else ()

    @property
    def sent_across(self) -> Compressor:
        return Cast() if self.path.collective == WITHIN else self.compressor

    def up(self, layout: Layout, ranks: int) -> Stage:
        sent = sum(round_.priced for round_ in self.compressor.wire(layout))
        return Stage("gather", "auto", sent, ranks)

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert len(work.hosts) == world_size, "nobody has located the engine"
        return _WithinExchange(self, work, rank)


class _WithinExchange(HierarchicalExchange):
    def __init__(self, collective: Hierarchical, work: Work, rank: int) -> None:
        super().__init__(collective, work, rank)
        self._packer = Packer(work)
        self._received: Sequence[torch.Tensor] | None = None

    def encode(self) -> None:
        compressor, work = self._collective.compressor, self._work
        if self._leads:
            self._own = work.gradient.float()  # itself where it is fp32
            # Of the others' length: engines count bytes of a gather by it. Nobody reads it.
            self._sent = work.lane.buffer("to the leader", _wire_bytes(compressor, work.layout), torch.uint8)
        else:
            send_residual(compressor, work)
            self._sent = self._packer.pack("to the leader", next(compressor.rounds(work)))

    def _send_up(self, host: Engine) -> None:
        self._received = host.gather(self._sent, LEADER)

    def _sum(self) -> None:
        compressor = self._collective.compressor
        assert isinstance(compressor, SingleRound)
        assert self._received is not None
        template = _template(compressor, self._work)
        for rank, packed in enumerate(self._received):
            if rank != LEADER:
                payload = self._packer.unpack(rank, packed, template)
                with located(f"payload from rank {rank} of the host"):
                    compressor.add_to(self._own, payload, 1.0, self._work.layout)

    def _make_room(self) -> None:
        self._take_buffer()


def _is_gradient(compressor: Compressor) -> bool:
    """Whether a payload stands for a gradient, which the leader can add to its own.

    Not where there are several rounds, or where payloads do not add up: signSGD sends votes. Nor where something in
    units of the gradient is kept: DGC sends velocities.
    """
    if not isinstance(compressor, SingleRound) or not compressor.adds_up:
        return False
    own = compressor.new_state(Layout.of((64, 64)), torch.device("cpu"))
    return not any(kind.startswith(GRADIENT_UNITS) for kind, _ in own)


def _template(compressor: SingleRound, work: Work) -> Payload:
    """Return a payload with the names and dtypes of what the other ranks of a host send."""
    tensors = compressor.compress(torch.ones(1, dtype=torch.float32, device=work.lane.device), Layout.of(1)).tensors
    return Payload(tensors, work.gradient.numel())


def _wire_bytes(compressor: Compressor, layout: Layout) -> int:
    return sum(round_.nbytes for round_ in compressor.wire(layout))
