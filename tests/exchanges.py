"""One step of one bucket by a path, on ranks in process: what tests of quantisers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work, build
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState

PATHS = ("allgather", "alltoall-allgather", "gather-broadcast")
NUMELS = (0, 1, 63, 64, 65, 200, 1000)

Draw = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Seen:
    """One step of one rank."""

    corrected: torch.Tensor
    pending: torch.Tensor
    result: torch.Tensor
    finite: bool
    sent_bytes: int


def normal(numel: int) -> Draw:
    return lambda rank: torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def whole(numel: int) -> Draw:
    """Whole numbers from -100 to 100, whose sums are exact in any order."""
    return lambda rank: torch.randint(-100, 101, (numel,), generator=torch.Generator().manual_seed(rank)).float()


def step_on(
    engine: Engine,
    compressor: Compressor,
    path: str,
    draw: Draw,
    dtype: torch.dtype = torch.float32,
    number: int = 1,
    *,
    scale: float | None = None,
    residual: Draw | None = None,
) -> Seen:
    """One step of the rank of an engine; `draw` gives its gradient, `residual` what is there before, or a hundredth of
    another."""
    gradient = draw(engine.rank).to(dtype)
    before = 0.01 * gradient.float().nan_to_num(0, 0, 0).flip(0) if residual is None else residual(engine.rank)
    state = BucketState(
        Residual(before, torch.full_like(before, 7.0), may_defer=True) if compressor.error_feedback else None
    )
    corrected = gradient.float() + before if compressor.error_feedback else gradient.float()
    layout = Layout.of(gradient.numel(), dtype=dtype)
    factor = 1 / engine.world_size if scale is None else scale
    work = Work(gradient, layout, number, bucket=3, scale=factor, state=state, rank=engine.rank)
    exchange = build(compressor, Path(path)).exchange(work, engine.rank, engine.world_size)
    exchange.encode()
    exchange.communicate(engine)
    finite = bool(exchange.decode())
    pending = state.residual.pending if state.residual is not None else torch.empty(0)
    result = work.gradient if exchange.result is None else exchange.result
    return Seen(corrected, pending, result, finite, sum(call.sent_bytes for call in engine.take_calls()))


def step(compressor: Compressor, path: str, size: int, *arguments: Any, **named: Any) -> list[Seen]:
    """step_on() of every rank; `draw` and what follows it are its arguments."""
    return run_ranks(size, lambda engine: step_on(engine, compressor, path, *arguments, **named))
