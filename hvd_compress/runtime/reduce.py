"""Reductions that engines do not have: by owners of shards, who reduce what all send them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.engines.layout import shard, shard_lengths
from hvd_compress.engines.limits import MAX_COUNT
from hvd_compress.errors import UnsupportedError
from hvd_compress.runtime.request import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""In what they are added: the result is rounded once."""


def allreduce(engine: Engine, flat: torch.Tensor, op: str) -> None:
    """Replace `flat` (n,) by the reduction over all ranks, the same bits on all of them. AVERAGE is a sum here."""
    if op == ADASUM:
        _adasum(engine, flat)
        return
    if op in (SUM, AVERAGE) and flat.dtype in engine.capabilities.sum_dtypes and flat.dtype not in _WIDER:
        engine.allreduce(flat)
        return
    for part in torch.split(flat, MAX_COUNT // flat.itemsize):
        _by_owners(engine, part, op)


def _by_owners(engine: Engine, flat: torch.Tensor, op: str) -> None:
    size = engine.world_size
    lengths = shard_lengths(flat.numel(), size)
    parts = [as_transferable(engine, flat[shard(flat.numel(), size, rank)]) for rank in range(size)]
    received = engine.alltoall(parts, [parts[engine.rank].numel()] * size)
    mine = as_transferable(engine, reduced([each.view(flat.dtype) for each in received], op))
    pieces = flat.itemsize // mine.itemsize  # of what an element moves as
    gathered = engine.allgather(mine, [length * pieces for length in lengths])
    for rank, part in enumerate(gathered):
        flat[shard(flat.numel(), size, rank)] = part.view(flat.dtype)


def _adasum(engine: Engine, flat: torch.Tensor) -> None:
    """Combine gradients pairwise, each without what the other has of its direction (Maleki et al. 2020, Eq. 3)."""
    moved = as_transferable(engine, flat)
    left = [each.view(flat.dtype) for each in engine.allgather(moved, [moved.numel()] * engine.world_size)]
    while len(left) > 1:
        left = [_combined(one, other) for one, other in zip(left[::2], left[1::2], strict=True)]
    flat.copy_(left[0])


def _combined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    first, second = one.double(), other.double()
    both, of_first, of_second = first.dot(second), first.dot(first), second.dot(second)
    left = 1 - both / (2 * of_first) if of_first else 1
    right = 1 - both / (2 * of_second) if of_second else 1
    return (left * first + right * second).to(one.dtype)


def reduced(tensors: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """Return the reduction of tensors of one shape and dtype. AVERAGE is a sum here; that of bool is a logical or."""
    stacked = torch.stack(list(tensors))
    if op in (SUM, AVERAGE):
        if stacked.dtype == torch.bool:
            return stacked.any(0)
        return stacked.to(_WIDER.get(stacked.dtype, stacked.dtype)).sum(0).to(stacked.dtype)
    if op == MIN:
        return stacked.amin(0)
    if op == MAX:
        return stacked.amax(0)
    if op == PRODUCT:
        return stacked.to(_WIDER.get(stacked.dtype, stacked.dtype)).prod(0).to(stacked.dtype)
    raise UnsupportedError(f"no reduction is called {op!r}")


@cache
def can_reduce(dtype: torch.dtype, op: str) -> bool:
    """Return whether torch has an operation for a dtype: where it has not, nothing is submitted."""
    try:
        result = reduced([torch.zeros(1, dtype=dtype, device="cpu")] * 2, op)
        scale(result, 0.5, 2)
    except (RuntimeError, TypeError):
        return False
    return True


def as_transferable(engine: Engine, flat: torch.Tensor) -> torch.Tensor:
    """Return the same memory in a dtype that the engine moves: bytes, where it knows no better."""
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat if flat.dtype in engine.capabilities.sum_dtypes else flat.view(torch.uint8)


def scale(flat: torch.Tensor, factor: float, divisor: int = 1) -> None:
    """Multiply in place by factor and divide by divisor; whole numbers as doubles, rounded towards zero."""
    if (factor, divisor) == (1, 1) or flat.dtype == torch.bool:
        return
    if factor == 1 and (flat.is_floating_point() or flat.is_complex()):
        flat.div_(divisor)
    elif flat.is_floating_point() or flat.is_complex():
        flat.mul_(factor / divisor)
    elif factor == 1:  # exact
        flat.div_(divisor, rounding_mode="trunc")
    else:
        flat.copy_(flat.double() * factor / divisor)
