"""Dense allreduce: every element of every rank, summed by the engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.compressors.base import Compressor
from hvd_compress.engines.base import Engine
from hvd_compress.schemes.base import Exchange, Scheme, Work, all_finite


@dataclass(frozen=True)
class Dense(Scheme):
    """One allreduce of a summable payload, in place where the compressor sends the gradient as it is.

    Where a bucket was compressed before and a residual is left, that is sent along, and what rounding to the gradient's
    dtype takes from it is what remains.

    Bytes: those of the engine's allreduce of numel elements in the payload's dtype.
    """

    compressor: Compressor
    algorithm: str = "auto"

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _DenseExchange(self, work)


class _DenseExchange(Exchange):
    def __init__(self, scheme: Dense, work: Work) -> None:
        self._scheme, self._work = scheme, work
        self._values: torch.Tensor
        self._sum: torch.Tensor

    def encode(self) -> None:
        self._send_residual()
        payload = self._scheme.compressor.compress(self._work.gradient, self._work.segments)
        assert payload.summable
        self._values = payload["values"]
        self._sum = self._work.lane.post("values", self._values)

    def _send_residual(self) -> None:
        gradient, residual, pending = self._work.gradient, self._work.residual, self._work.pending
        if residual is None or pending is None:
            return
        if gradient.dtype == residual.dtype:
            native.accumulate(gradient, residual, out=gradient)
            pending.zero_()
        else:
            native.accumulate(gradient, residual, out=pending)
            gradient.copy_(pending)
            pending.sub_(gradient)

    def communicate(self, engine: Engine) -> None:
        engine.allreduce(self._sum, self._scheme.algorithm)

    def decode(self) -> torch.Tensor:
        gradient = self._work.gradient
        self._work.lane.fetch(self._sum, into=self._values)
        if self._values.data_ptr() != gradient.data_ptr():
            gradient.copy_(self._values)
        gradient.mul_(self._work.scale)
        return all_finite(gradient)
