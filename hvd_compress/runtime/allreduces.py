"""Allreduces of tensors with Horovod's signatures; operations.py has other collectives, and says when they raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.runtime.compression import Compression
from hvd_compress.runtime.handles import OPS, Adasum, Average, Sum, submit, synchronize
from hvd_compress.runtime.request import ALLREDUCE
from hvd_compress.runtime.results import differentiable, results_at, results_into, set_size
from hvd_compress.runtime.world import ProcessSet, global_process_set, size


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce a tensor over all ranks; return a handle of the result, a new tensor."""
    return _reduce([tensor], None, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce a tensor over all ranks, in place; return a handle."""
    return _reduce([tensor], [tensor], average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce tensors as one; return a handle of a list of new tensors."""
    return _reduce(tensors, None, average, name, op, prescale_factor, postscale_factor, process_set, grouped=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce tensors as one, in place; return a handle of their list."""
    return _reduce(tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set, grouped=True)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the reduction of a tensor over all ranks. Gradients flow back, reduced alike."""
    small, context = compression.compress(tensor)
    rest = op, prescale_factor, postscale_factor, process_set

    def run(each: torch.Tensor) -> Any:
        return synchronize(allreduce_async(each, average, name, *rest))

    reduced = differentiable(run, lambda gradient: [allreduce(gradient, average, None, Compression.none, *rest)], small)
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the reductions of tensors, moved as one. Gradients flow back, reduced alike."""
    if not tensors:
        raise ConfigError("a group of allreduce has no tensors")
    small, contexts = zip(*map(compression.compress, tensors), strict=True)
    rest = op, prescale_factor, postscale_factor, process_set

    def run(*each: torch.Tensor) -> Any:
        return tuple(synchronize(grouped_allreduce_async(each, average, name, *rest)))

    def back(*gradients: torch.Tensor) -> Any:
        return grouped_allreduce(gradients, average, None, Compression.none, *rest)

    return list(map(compression.decompress, differentiable(run, back, *small), contexts))


def allreduce_(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Reduce a tensor over all ranks in place, and return it. Arguments as allreduce_async_()."""
    return synchronize(allreduce_async_(tensor, *arguments, **options))


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *arguments: Any, **options: Any) -> Any:
    """Reduce tensors as one in place, and return their list. Arguments as grouped_allreduce_async_()."""
    return synchronize(grouped_allreduce_async_(tensors, *arguments, **options))


def _reduce(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool = False,
) -> int:
    if average is not None and op is not None:
        raise ConfigError("average and op say the same: leave average out")
    chosen = op if op is not None else Average if average in (None, True) else Sum
    if chosen == Adasum and (process_set.process_set_id or size() & (size() - 1)):
        raise UnsupportedError(
            f"Adasum takes all ranks of the job, a power of two: take hvd.Average for {set_size(process_set)}"
        )
    finish = results_at(tensors, not grouped) if outputs is None else results_into(outputs, not grouped)
    fields = reduction(chosen, prescale, postscale, ALLREDUCE)
    return submit(ALLREDUCE, tensors, name, process_set, finish, outputs=outputs, **fields)


def reduction(op: int, prescale: float, postscale: float, verb: str) -> dict[str, Any]:
    if op == Adasum and verb != ALLREDUCE:
        raise UnsupportedError(f"Adasum combines whole tensors, and {verb} has none")
    if op not in range(len(OPS)):
        raise ConfigError(f"op = {op!r} is no operation of {verb}: take hvd.Average, Sum, Min, Max, Product or Adasum")
    return {"op": OPS[op], "prescale": float(prescale), "postscale": float(postscale)}
