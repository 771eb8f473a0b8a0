"""Reduce-scatter: each rank receives what all have sent of its shard, and keeps the sum. Nobody sends it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors.base import Compressor, Requantizer, SingleRound, feedback_of
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.finite import all_finite, nan_unless
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard_lengths
from hvd_compress.errors import located
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload

NAME = "reduce-scatter"


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Quantised reduce-scatter, as FSDP needs it: ZeRO++ (Wang et al. 2023, Section 3.3) in one hop.

    1. Every rank compresses what others own, and sends it to its owner.
    2. The owner adds its own gradient, uncompressed, and what it received, in fp32 and in rank order.

    The result, `Exchange.result`, is the shard alone, in fp32; the gradient is not kept beyond its compression. Where
    an element on a rank is not finite, the results of all ranks are NaN in this bucket: all skip the same step.

    Bytes sent by a rank, with a payload of P bytes and N ranks: (N-1)/N P. A policy asks for it, no user.
    """

    compressor: Compressor
    path: Path = Path(NAME)
    names = (NAME,)
    named = False
    keeps_gradient = False
    replaces = "reduce_scatter"

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return isinstance(compressor, Cast) or (isinstance(compressor, Requantizer) and compressor.adds_up)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return (Stage("alltoall", "auto", sum(round_.priced for round_ in self.compressor.wire(layout))),)

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _ReduceScatterExchange(self, work, rank, world_size)


class _ReduceScatterExchange(Exchange):
    def __init__(self, collective: ReduceScatter, work: Work, rank: int, world_size: int) -> None:
        assert isinstance(collective.compressor, SingleRound)
        self._compressor, self._work, self._rank = collective.compressor, work, rank
        self._lengths = shard_lengths(work.layout.numel, world_size)
        self._own: torch.Tensor
        self._packer: Packer

    def encode(self) -> None:
        work, start = self._work, 0
        gradient = work.gradient
        # Without its gradient, which is as large as all shards: later phases need neither it nor the residual.
        self._work = replace(work, gradient=gradient.new_empty(0), state=BucketState())
        self._packer = Packer(self._work, self._compressor.is_fixed(work.layout))
        finite = all_finite(gradient)
        nan_unless(finite if gradient.is_cuda else bool(finite), gradient)  # every owner must see it
        send_residual(self._compressor, work)
        self._outgoing: list[torch.Tensor] = []
        for owner, length in enumerate(self._lengths):
            piece = slice(start, start + length)
            if owner == self._rank:
                self._own = _corrected(self._compressor, work, piece)
                self._outgoing.append(work.lane.buffer("own", 0, torch.uint8))
            else:
                payload = _compressed(self._compressor, work, piece, owner)
                self._outgoing.append(self._packer.pack(f"to {owner}", payload))
            start += length
        if gradient.is_cuda:  # its memory is the training's to use again, when this has read it
            gradient.record_stream(torch.cuda.current_stream(gradient.device))

    def communicate(self, engine: Engine) -> None:
        most = [self._template(length).packed_bytes for length in self._lengths]
        own_bytes = most[self._rank]
        lengths = [0 if rank == self._rank else own_bytes for rank in range(len(self._lengths))]
        self._received = engine.alltoall(self._outgoing, self._packer.lengths(engine, most, lengths))

    def decode(self) -> torch.Tensor:
        layout, template, scale = self._part, self._template(self._lengths[self._rank]), self._work.scale
        total = torch.zeros_like(self._own)
        for rank, packed in enumerate(self._received):
            if rank == self._rank:
                total.add_(self._own, alpha=scale)
                continue
            payload = self._packer.unpack(rank, packed, template)
            with located(f"payload from rank {rank}"):
                self._compressor.add_to(total, payload, scale, layout)
        self.result = total
        return all_finite(total)

    @property
    def _part(self) -> Layout:
        start = sum(self._lengths[: self._rank])
        return self._work.layout.part(slice(start, start + self._lengths[self._rank]), self._work.layout.dtype)

    def _template(self, numel: int) -> Payload:
        if isinstance(self._compressor, Requantizer):
            return self._compressor.template(numel)
        assert isinstance(self._compressor, Cast)
        sent = torch.empty(numel, dtype=self._compressor.sum_dtype(self._work.layout.dtype))
        return Payload({"values": sent}, sent.numel(), summable=True)


def _compressed(compressor: SingleRound, work: Work, piece: slice, owner: int) -> Payload:
    if isinstance(compressor, Requantizer):
        return compressor.encode_shard(work, piece, owner)
    return compressor.compress(work.gradient[piece], work.layout)


def _corrected(compressor: Compressor, work: Work, piece: slice) -> torch.Tensor:
    """Return what this rank adds to its own shard, in fp32: all that there is, so that nothing is left of it."""
    own = work.gradient[piece].to(torch.float32, copy=True)
    if compressor.error_feedback:
        residual, pending = feedback_of(work)
        own += residual[piece]
        pending[piece].zero_()
    return own
