"""Collectives of tensors with Horovod's signatures: at once or by a handle, new or in place, one or a group.

A collective meets that of the same name on other ranks, whatever the order; without a name, the one that is called as
many calls after init() there. All raise RanksDifferError, on all ranks, where these differ, and CommunicationError
where a rank does not come within HVD_COMPRESS_TIMEOUT_S, has left or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.runtime.allreduces import allreduce, grouped_allreduce, reduction
from hvd_compress.runtime.compression import Compression
from hvd_compress.runtime.handles import Average, Sum, submit, synchronize
from hvd_compress.runtime.request import ALLGATHER, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER
from hvd_compress.runtime.results import differentiable, results_at, results_into, set_size
from hvd_compress.runtime.world import ProcessSet, global_process_set, size, world


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to add up sparse tensors; return what waits for the result, for synchronize()."""
    whole = tensor.coalesce()
    indices = allgather_async(whole.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(whole.values(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        found = synchronize(values) / (set_size(process_set) if op == Average else 1)
        return torch.sparse_coo_tensor(
            synchronize(indices).t(), found.to(tensor.dtype), tensor.shape, check_invariants=True
        )

    return wait


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin to gather the rows of all ranks, which may have different numbers of them; return a handle."""
    return submit(ALLGATHER, [tensor], name, process_set, results_at([tensor], one=True))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to gather the rows of several tensors; return a handle of their list."""
    return submit(ALLGATHER, tensors, name, process_set, results_at(tensors))


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the rows of all ranks, in their order. A rank's gradient is its rows of the mean of all gradients."""
    (found,) = grouped_allgather([tensor], name, process_set)
    return found


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the rows of all ranks of several tensors. Gradients flow back as of allgather()."""

    def run(*each: torch.Tensor) -> Any:
        return tuple(synchronize(grouped_allgather_async(each, name, process_set)))

    def back(*gradients: torch.Tensor) -> Any:
        means = grouped_allreduce(gradients, op=Average, process_set=process_set)
        rows = torch.tensor([[tensor.shape[0] for tensor in tensors]], device="cpu")
        before = allgather(rows, process_set=process_set)[: process_set.rank()].sum(0).tolist()
        return [m.narrow(0, at, t.shape[0]) for m, at, t in zip(means, before, tensors, strict=True)]

    return list(differentiable(run, back, *tensors))


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to send the tensor of rank `root_rank` of the job to all; return a handle of a new tensor."""
    return submit(BROADCAST, [tensor], name, process_set, results_at([tensor], one=True), root=_checked_root(root_rank))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to replace a tensor by that of rank `root_rank` of the job; return a handle."""
    finish, root = results_into([tensor], one=True), _checked_root(root_rank)
    return submit(BROADCAST, [tensor], name, process_set, finish, outputs=[tensor], root=root)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the tensor of rank `root_rank` of the job. Its gradient is the mean of all, that of the others zero."""

    def back(gradient: torch.Tensor) -> list[torch.Tensor]:
        mean = allreduce(gradient, op=Average, process_set=process_set)
        return [mean if world().engine.rank == root_rank else torch.zeros_like(mean)]

    return differentiable(lambda each: synchronize(broadcast_async(each, root_rank, name, process_set)), back, tensor)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Replace a tensor by that of rank `root_rank` of the job, and return it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to send each rank its rows, `splits` of them or as many to each; return a handle of what came, and of how
    many rows each has sent."""
    count = set_size(process_set)
    if splits is None:
        rows, left = divmod(tensor.shape[0] if tensor.dim() else 0, count)
        if left:
            raise ConfigError(f"alltoall of {tensor.shape[0]} rows over {count} ranks needs splits: they do not divide")
        parts = [rows] * count
    else:
        parts = [int(each) for each in (splits.tolist() if isinstance(splits, torch.Tensor) else splits)]

    def finish(results: list[Any]) -> Any:
        ((received, counts),) = results
        where = splits.device if isinstance(splits, torch.Tensor) else counts.device
        return received.to(tensor.device), counts.to(where)

    return submit(ALLTOALL, [tensor], name, process_set, finish, splits=tuple(parts))


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows that all ranks have sent here; where `splits` are given, also how many each has sent."""
    counts: list[torch.Tensor] = []

    def run(each: torch.Tensor) -> Any:
        received, sent = synchronize(alltoall_async(each, splits, name, process_set))
        counts.append(sent)
        return received

    received = differentiable(run, lambda g: [alltoall(g, counts[0], process_set=process_set)[0]], tensor)
    return received if splits is None else (received, counts[0])


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin to reduce a tensor of which each rank gets some rows, the first ranks one more; return a handle."""
    fields = reduction(op, prescale_factor, postscale_factor, REDUCESCATTER)
    return submit(REDUCESCATTER, [tensor], name, process_set, results_at([tensor], one=True), **fields)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin to reduce and scatter several tensors; return a handle of their list."""
    fields = reduction(op, prescale_factor, postscale_factor, REDUCESCATTER)
    return submit(REDUCESCATTER, tensors, name, process_set, results_at(tensors), **fields)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of the reduction. Gradients flow back."""
    rest = compression, op, process_set, prescale_factor, postscale_factor
    (found,) = grouped_reducescatter([tensor], name, *rest)
    return found


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return this rank's rows of several reductions. Gradients flow back."""
    if not tensors:
        raise ConfigError("a group of reducescatter has no tensors")
    small, contexts = zip(*map(compression.compress, tensors), strict=True)
    factor = prescale_factor * postscale_factor * (set_size(process_set) if op == Sum else 1)

    def run(*each: torch.Tensor) -> Any:
        handle = grouped_reducescatter_async(each, name, op, process_set, prescale_factor, postscale_factor)
        return tuple(synchronize(handle))

    def back(*gradients: torch.Tensor) -> Any:
        return grouped_allgather([gradient * factor for gradient in gradients], process_set=process_set)

    return list(map(compression.decompress, differentiable(run, back, *small), contexts))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks call this. All barriers have one name, so that ranks meet again after one that failed."""
    synchronize(submit(BARRIER, [torch.zeros(0, device="cpu")], "noname", process_set, lambda _: None))


def _checked_root(root: int) -> int:
    if not 0 <= root < size():
        raise ConfigError(f"root_rank = {root} is not one of the {size()} ranks")
    return index(root)
