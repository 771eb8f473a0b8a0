"""All-gather: every rank's payload to every rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.compressors.base import FeedbackCompressor
from hvd_compress.engines.base import Engine
from hvd_compress.errors import located
from hvd_compress.payload import Payload
from hvd_compress.schemes.base import Exchange, Scheme, Work, all_finite


@dataclass(frozen=True)
class AllGather(Scheme):
    """One all-gather of payloads, decompressed and added in rank order.

    Bytes sent by a rank: (N-1) * payload, which for top-k is 8 * k.
    """

    compressor: FeedbackCompressor
    algorithm: str = "auto"

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _AllGatherExchange(self, work, world_size)


class _AllGatherExchange(Exchange):
    def __init__(self, scheme: AllGather, work: Work, world_size: int) -> None:
        assert work.residual is not None
        assert work.pending is not None
        self._compressor, self._work, self._world_size = scheme.compressor, work, world_size
        self._algorithm = scheme.algorithm
        self._residual, self._pending = work.residual, work.pending
        self._own: Payload
        self._packed: torch.Tensor
        self._received: list[torch.Tensor] = []

    def encode(self) -> None:
        work = self._work
        self._own = self._compressor.compress_feedback(work.gradient, self._residual, self._pending, work.segments)
        self._packed = work.lane.buffer("sent", self._own.packed_bytes, torch.uint8)
        self._own.pack(work.step, work.bucket, self._packed, work.lane.place, work.note)

    def communicate(self, engine: Engine) -> None:
        # Every rank has the same segments and settings, so all payloads have this length.
        lengths = [self._packed.numel()] * self._world_size
        inbox = self._work.lane.inbox("received", sum(lengths), torch.uint8)
        self._received = engine.allgather(self._packed, lengths, self._algorithm, out=inbox)

    def decode(self) -> torch.Tensor:
        work = self._work
        payloads = []
        for rank, buffer in enumerate(self._received):
            with located(f"payload from rank {rank}"):
                payloads.append(self._own.unpack(work.lane.fetch(buffer), work.step, work.bucket, header=buffer))
                self.heard |= payloads[-1].note
        # 16-bit gradients are summed in fp32 and rounded once.
        exact = work.gradient.dtype == torch.float32
        total = (
            work.gradient
            if exact
            else torch.empty(work.gradient.numel(), dtype=torch.float32, device=work.gradient.device)
        )
        self._compressor.sum_into(total, payloads, work.scale, work.segments)
        if total is not work.gradient:
            work.gradient.copy_(total)
        return all_finite(work.gradient)
