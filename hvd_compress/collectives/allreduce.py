"""Allreduce: payloads of all ranks, summed by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, send_residual
from hvd_compress.compressors.base import Compressor, finish
from hvd_compress.compressors.finite import all_finite
from hvd_compress.compressors.summed import headroom
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class AllReduce(Collective):
    """One allreduce for each tensor of a payload and each round.

    Bytes: those of the engine's allreduce of each round's payload.
    """

    compressor: Compressor
    path: Path = Path("allreduce")
    names = ("allreduce",)
    verb = "allreduce"

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return compressor.compresses and _summable(compressor)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        if not cls.carries(compressor) or any(r.sum_dtype not in can.sum_dtypes for r in compressor.wire(layout)):
            return ()
        return [Path(cls.names[0], algorithm) for algorithm in ("auto", *can.algorithms)]

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        rounds = self.compressor.wire(layout)
        return tuple(Stage("allreduce", self.path.algorithm, round_.nbytes) for round_ in rounds)

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _AllReduceExchange(self, work)


@dataclass(frozen=True)
class Dense(AllReduce):
    """The allreduce of a compressor that loses nothing.

    Where a bucket was compressed before and a residual is left, that is sent along, and what rounding to the gradient's
    dtype takes from it is what remains.
    """

    path: Path = Path("dense")
    names = ("dense",)

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return not compressor.compresses and _summable(compressor)


class _AllReduceExchange(Exchange):
    def __init__(self, collective: AllReduce, work: Work) -> None:
        self._collective, self._work = collective, work
        wire = collective.compressor.wire(work.layout)
        # In 16 bits a sum may overflow where the average does not: each rank divides first.
        narrow = any(round_.sum_dtype is not None and round_.sum_dtype.itemsize == 2 for round_ in wire)
        self._factor = headroom(work.scale) if narrow else 1.0
        scaled = work if self._factor == 1.0 else replace(work, scale=work.scale / self._factor)
        self._rounds = collective.compressor.rounds(scaled)
        self._last = len(wire) - 1
        self._own: Payload
        self._kept: list[Payload] = []  # until the step is over: a stream may still read what a round has sent
        self._sums: dict[str, torch.Tensor]
        self.is_light = not collective.compressor.compresses and work.state.residual is None

    def encode(self) -> None:
        send_residual(self._collective.compressor, self._work)
        self._post(next(self._rounds), 0)

    def _post(self, payload: Payload, number: int) -> None:
        assert payload.summable
        if self._factor != 1.0:
            for tensor in payload.tensors.values():
                tensor.mul_(self._factor)
        self._own = payload
        self._kept.append(payload)
        self._sums = {
            name: self._work.lane.post(f"{name} {number}", tensor) for name, tensor in payload.tensors.items()
        }

    def communicate(self, engine: Engine) -> None:
        for number in range(self._last + 1):
            for total in self._sums.values():
                engine.allreduce(total, self._collective.path.algorithm)
            if number < self._last:
                with self._work.lane.between_collectives():
                    self._post(self._rounds.send([self._fetched()]), number + 1)

    def _fetched(self) -> Payload:
        """The sum over ranks, where compression runs."""
        own, lane = self._own, self._work.lane
        tensors = {name: lane.fetch(total, into=own[name]) for name, total in self._sums.items()}
        return Payload(tensors, own.numel, summable=True)

    def decode(self) -> torch.Tensor:
        known = finish(self._rounds, [self._fetched()])
        return all_finite(self._work.gradient) if known is None else known


def _summable(compressor: Compressor) -> bool:
    return all(round_.sum_dtype is not None for round_ in compressor.wire(Layout.of(1)))
