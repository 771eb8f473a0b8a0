"""Horovod's broadcasts of one tensor, also of dtypes, strides and devices that Horovod refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.horovod.runtime_selection import hvd

global_process_set = hvd.global_process_set
_horovods_broadcast_async = hvd.broadcast_async  # now, as patch_horovod() replaces them there
_horovods_broadcast_async_ = hvd.broadcast_async_
_horovods_synchronize = hvd.synchronize

_HOROVODS = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}
"""The dtypes of Horovod's broadcast."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes: what stands for an element of another dtype."""


class _Handle(int):
    """Horovod's handle of a tensor that stands for another one, and what makes the result of it."""

    finish: Callable[[torch.Tensor], torch.Tensor]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast, also of bool, bfloat16, complex and non-contiguous tensors. Gradients flow back.

    Returns:
        A new tensor of the root's values with the dtype, the device and, where they are dense, the strides of `tensor`.

    Raises:
        ConfigError: `tensor` is no tensor, or a sparse one, or lies neither on the host nor on a CUDA device.
    """
    return _Broadcast.apply(_checked("broadcast", tensor), root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_async, also of bool, bfloat16, complex and non-contiguous tensors.

    Returns:
        A handle for poll() and synchronize() of this namespace. The result is as that of broadcast().

    Raises:
        ConfigError: as broadcast().
    """
    wire = on_the_wire(_checked("broadcast_async", tensor))
    if _is_itself(wire, tensor):
        return _horovods_broadcast_async(tensor, root_rank, name, process_set)
    handle = _Handle(_horovods_broadcast_async(wire, root_rank, name, process_set))
    handle.finish = partial(_off_the_wire, tensor.detach())
    return handle


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_, in place, also of bool, bfloat16, complex and non-contiguous tensors.

    Returns:
        `tensor` itself.

    Raises:
        ConfigError: as broadcast(), or elements of `tensor` share memory, as expand() makes them.
    """
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Horovod's broadcast_async_, in place, also of bool, bfloat16, complex and non-contiguous tensors.

    Returns:
        A handle for poll() and synchronize() of this namespace. A tensor that Horovod does not take as it is, such as
        a transposed one, is written by synchronize().

    Raises:
        ConfigError: as broadcast_().
    """
    wire = on_the_wire(check_writable("broadcast_async_", tensor))
    if _is_itself(wire, tensor):
        return _horovods_broadcast_async_(tensor, root_rank, name, process_set)
    handle = _Handle(_horovods_broadcast_async_(wire, root_rank, name, process_set))
    handle.finish = partial(_written, tensor)
    return handle


def synchronize(handle: Any) -> Any:
    """Horovod's synchronize: wait for an asynchronous operation and return its result."""
    result = _horovods_synchronize(handle)
    return handle.finish(result) if isinstance(handle, _Handle) and result is not None else result


def check_writable(what: str, tensor: Any) -> torch.Tensor:
    """Return `tensor`, which broadcast_() can write.

    Raises:
        ConfigError: as broadcast_(). The message begins with `what`.
    """
    checked = _checked(what, tensor)
    strides = zip(checked.shape, checked.stride(), strict=True)
    if checked.numel() and any(stride == 0 and size > 1 for size, stride in strides):
        raise ConfigError(
            f"{what} cannot write a tensor of shape {tuple(checked.shape)} and strides {checked.stride()}, as its "
            "elements share memory: pass tensor.clone(memory_format=torch.contiguous_format)"
        )
    return checked


def _checked(what: str, tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(
            f"{what} takes a tensor, not a {type(tensor).__name__}: a gradient is None before the first backward pass, "
            "and hvd.broadcast_object() takes other objects"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ConfigError(f"{what} takes no {tensor.type()}: pass tensor.to_dense(), or tensor.dequantize()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{what} takes tensors on the host and on CUDA devices, not on {tensor.device}: tensor.cpu()")
    return tensor


def on_the_wire(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that Horovod takes, with the elements of `tensor` in logical order: in its memory if possible."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_cuda and not hvd.cuda_built():  # it knows tensors of the host alone
        plain = plain.cpu()
    plain = plain.contiguous()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain if plain.dtype in _HOROVODS else plain.view(_INTEGERS[plain.dtype.itemsize])


def _is_itself(wire: torch.Tensor, tensor: torch.Tensor) -> bool:
    return wire.dtype == tensor.dtype and wire.data_ptr() == tensor.data_ptr()


def _off_the_wire(like: torch.Tensor, wire: torch.Tensor) -> torch.Tensor:
    """Return the elements of `wire` in a tensor of the dtype, the device and, where they are dense, the strides."""
    received = _elements(wire, like.dtype)
    return received if like.is_contiguous() and like.device == wire.device else torch.empty_like(like).copy_(received)


@torch.no_grad()
def _written(tensor: torch.Tensor, wire: torch.Tensor) -> torch.Tensor:
    return tensor if wire.data_ptr() == tensor.data_ptr() else tensor.copy_(_elements(wire, tensor.dtype))


def _elements(wire: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.view_as_complex(wire) if dtype.is_complex else wire.view(dtype)


class _Broadcast(torch.autograd.Function):
    """Horovod's rule: the gradient of the root is the mean of all, and that of the others zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: Any) -> Any:
        ctx.is_root, ctx.process_set = hvd.rank() == root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        summable = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
        summable = summable.float() if summable.dtype == torch.bfloat16 else summable
        mean = hvd.allreduce(summable.contiguous(), op=hvd.Average, process_set=ctx.process_set)
        mean = torch.view_as_complex(mean) if gradient.is_complex() else mean.to(gradient.dtype)
        return mean if ctx.is_root else torch.zeros_like(mean), None, None, None
