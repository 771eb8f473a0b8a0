"""Horovod's broadcasts of one tensor, also of a bfloat16 one, which Horovod refuses: it travels as its 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from horovod.torch import mpi_ops
from horovod.torch.mpi_ops import global_process_set


class _Handle(int):
    """Horovod's handle of bits that are being broadcast, and what makes the result of them."""

    finish: Callable[[torch.Tensor], torch.Tensor]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast, also of bfloat16: through fp32, which holds all its values, so that gradients flow back."""
    if tensor.dtype != torch.bfloat16:
        return mpi_ops.broadcast(tensor, root_rank, name, process_set)
    return mpi_ops.broadcast(tensor.float().contiguous(), root_rank, name, process_set).to(torch.bfloat16)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_async, also of bfloat16. The handle is for poll() and synchronize() of this namespace."""
    if tensor.dtype != torch.bfloat16:
        return mpi_ops.broadcast_async(tensor, root_rank, name, process_set)
    handle = _Handle(mpi_ops.broadcast_async(_bits(tensor), root_rank, name, process_set))
    handle.finish = partial(torch.Tensor.view, dtype=torch.bfloat16)
    return handle


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_, in place, also of bfloat16."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_async_, in place, also of bfloat16, which need not be contiguous.

    The handle is for poll() and synchronize() of this namespace. A tensor that is not contiguous is written by
    synchronize().
    """
    if tensor.dtype != torch.bfloat16:
        return mpi_ops.broadcast_async_(tensor, root_rank, name, process_set)
    handle = _Handle(mpi_ops.broadcast_async_(_bits(tensor), root_rank, name, process_set))
    handle.finish = partial(_put, tensor)
    return handle


def synchronize(handle: Any) -> Any:
    """Horovod's synchronize: wait for an asynchronous operation and return its result."""
    result = mpi_ops.synchronize(handle)
    return handle.finish(result) if isinstance(handle, _Handle) and result is not None else result


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's own memory as integers, or a copy's where that is not contiguous."""
    return tensor.detach().contiguous().view(torch.int16)


@torch.no_grad()
def _put(tensor: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.copy_(bits.view(tensor.dtype))
