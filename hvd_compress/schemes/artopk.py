"""AR-Topk: one rank's top-k indices, everybody's values at them, summed by an allreduce."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.compressors.base import Sparsifier
from hvd_compress.engines.base import Engine
from hvd_compress.errors import PayloadError, located, received
from hvd_compress.payload import Payload
from hvd_compress.schemes.base import Exchange, Scheme, Work, all_finite


@dataclass(frozen=True)
class ARTopk(Scheme):
    """Algorithm 1 of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning", on a fused bucket.

    `selection` says whose indices are used: "star" takes the ranks in turn (rank step % N), "var" the rank whose
    selected values have the largest squared norm (lowest rank among equals).

    `algorithm` is that of the allreduce, `broadcast` that of the broadcast.

    Bytes sent by a rank, on average: (N-1)/N * 4 * k for the broadcast of indices (more for "scatter_allgather"), and
    those of the engine's allreduce of 4 * k bytes; "var" adds an all-gather of 8 bytes.
    """

    compressor: Sparsifier
    selection: str = "star"
    algorithm: str = "auto"
    broadcast: str = "auto"

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        kind = _VarExchange if self.selection == "var" else _StarExchange
        return kind(self, work, rank, world_size)


class _ARTopkExchange(Exchange):
    """What both ways to choose the worker share: broadcast, take, allreduce."""

    def __init__(self, scheme: ARTopk, work: Work, rank: int, world_size: int) -> None:
        assert work.residual is not None
        assert work.pending is not None
        self._scheme, self._work, self._rank, self._world_size = scheme, work, rank, world_size
        self._residual, self._pending = work.residual, work.pending
        # What every rank expects from the chosen one; replaced by what this rank selected, if it did.
        indices = torch.zeros(scheme.compressor.kept(work.segments), dtype=torch.int32, device="cpu")
        self._selection = Payload({"indices": indices}, work.gradient.numel())
        self._values: torch.Tensor | None = None
        self._finite = True

    def _accumulate(self) -> None:
        self._finite = bool(native.accumulate(self._work.gradient, self._residual, out=self._pending))

    def _select(self, payload: Payload) -> None:
        self._selection = Payload({"indices": payload["indices"]}, payload.numel)

    def _share(self, engine: Engine, root: int) -> None:
        work = self._work
        packed = self._selection.pack(work.step, work.bucket)
        engine.broadcast(packed, root, self._scheme.broadcast)
        with located(f"indices from rank {root}"):
            expected = self._selection["indices"].numel()
            self._selection = self._selection.unpack(packed, work.step, work.bucket)
            if self._selection["indices"].numel() != expected:
                raise PayloadError(f"{self._selection['indices'].numel()} indices instead of {expected}")
            if self._values is None:
                self._values = self._scheme.compressor.take(self._pending, self._selection["indices"])
        if not self._finite:
            self._values.fill_(torch.nan)  # perhaps at none of these indices: all ranks must see it nevertheless
        engine.allreduce(self._values, self._scheme.algorithm)

    def decode(self) -> bool:
        assert self._values is not None
        gradient = self._work.gradient
        with received():
            native.scatter_lists([(self._selection["indices"], self._values)], gradient, self._work.scale, clear=True)
        return all_finite(native.gather(gradient, self._selection["indices"]))


class _StarExchange(_ARTopkExchange):
    """Only the rank whose turn it is selects; the others add their residual and wait."""

    def encode(self) -> None:
        work = self._work
        self._root = work.step % self._world_size
        if self._rank != self._root:
            self._accumulate()
            return
        compressor = self._scheme.compressor
        payload = compressor.compress_feedback(work.gradient, self._residual, self._pending, work.segments)
        self._select(payload)
        self._values = payload["values"]  # NaN and Inf are the largest of all, so they are among these

    def communicate(self, engine: Engine) -> None:
        self._share(engine, self._root)


class _VarExchange(_ARTopkExchange):
    """All ranks select, and compare how much they found."""

    def encode(self) -> None:
        self._accumulate()
        payload = self._scheme.compressor.compress(self._pending, self._work.segments)
        self._select(payload)
        self._variance = payload["values"].double().square().sum().reshape(1)

    def communicate(self, engine: Engine) -> None:
        variances = torch.cat(engine.allgather(self._variance, [1] * self._world_size))
        self._share(engine, int(variances.argmax()))
