"""One bucket from step to step on a rank in process: what tests of collectives share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState

LAYOUT = Layout.of((20, 12), 37, 1, (9, 9))
NUMEL = LAYOUT.numel


@dataclass(frozen=True)
class Step:
    """What a rank has after a step."""

    result: torch.Tensor
    residual: torch.Tensor
    finite: bool


def gradient_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + rank))


def steps(
    engine: InProcessEngine,
    compressor: Compressor,
    collective: str,
    count: int,
    *,
    draw: Callable[[int, int], torch.Tensor] = gradient_of,
    first: torch.Tensor | None = None,
    spoil: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    coefficient: float = 1.0,
) -> Iterator[Step]:
    """Exchange a bucket of LAYOUT `count` times, and yield after each.

    Args:
        draw: gives the gradient of a rank in a step.
        first: the residual to begin with; zeros without.
        spoil: a rank, and the element where its gradients are NaN.
        coefficient: of error feedback.
    """
    rank, size = engine.rank, engine.world_size
    layout = Layout(LAYOUT.names, LAYOUT.shapes, dtype)
    residual = Residual(
        torch.zeros(NUMEL) if first is None else first.clone(), torch.full((NUMEL,), 77.0), may_defer=True
    )
    state = BucketState(residual, dict(compressor.new_state(layout, torch.device("cpu"))))
    built = collectives.build(compressor, Path(collective))
    for step in range(count):
        gradient = draw(rank, step).to(dtype)
        if spoil is not None and rank == spoil[0]:
            gradient[spoil[1]] = torch.nan
        work = Work(gradient, layout, step, 5, 1 / size, state, rank, coefficient, size, hosts=engine.hosts)
        exchange = built.exchange(work, rank, size)
        exchange.encode()
        exchange.communicate(engine)
        finite = bool(exchange.decode())
        if finite:
            state.commit()
        yield Step(gradient.clone(), state.residual.current.clone(), finite)
