"""What every kernel asks of its arguments before anything is written."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import torch

from hvd_compress.checks import is_whole
from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from hvd_compress.native.module import FLOATS

MAX_NUMEL = 2**31 - 1
"""Elements that int32 indices reach."""


def feedback_out(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Check the three tensors of a kernel with error feedback; return the one to write to."""
    out = residual if out is None else out
    check_tensor("grad", grad)
    check_tensor("residual", residual, (torch.float32, grad.dtype))
    if out is not residual:
        check_tensor("out", out, (residual.dtype,))
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor.numel() != grad.numel():
            raise ConfigError(f"{name} has {tensor.numel()} elements, grad has {grad.numel()}")
    for name, tensor in (("residual", residual), ("grad", grad)):
        itself = tensor.data_ptr() == out.data_ptr() and tensor.dtype == out.dtype and tensor.device == out.device
        if not itself:
            check_apart(name, tensor, "out", out)
    written("out", out)
    return out


def check_tensor(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not (tensor.is_cpu or tensor.is_cuda):  # asked of the tensor: what builds a torch.device takes longer
        check_device(name, tensor.device)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ConfigError(f"{name} must be of {wanted}, got {tensor.dtype}; convert it with .to()")
    if is_negated(tensor):
        raise ConfigError(f"{name} is a view that negates what lies in memory; call .resolve_neg() first")
    if tensor.layout is not torch.strided or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ConfigError(
            f"{name} must be contiguous and one-dimensional, got shape {tuple(tensor.shape)}"
            + (f" with strides {tensor.stride()}" if tensor.layout is torch.strided else f" with {tensor.layout}")
            + "; use .contiguous().view(-1)"
        )
    if tensor.numel() > MAX_NUMEL:
        raise ConfigError(f"{name} has {tensor.numel()} elements; int32 indices reach {MAX_NUMEL}")
    if tensor.untyped_storage().nbytes() < tensor.storage_offset() * tensor.element_size() + tensor.nbytes:
        raise ConfigError(f"{name} has no memory behind it: its storage was resized")
    if tensor.numel() and not tensor.data_ptr():
        raise UnsupportedError(f"{name} only stands for a tensor: call kernels outside of torch.compile and the like")
    if tensor.data_ptr() % tensor.element_size():
        raise ConfigError(f"{name} does not start at a multiple of its element size, {tensor.element_size()} bytes")


def is_negated(tensor: torch.Tensor) -> bool:
    """As is_neg(), which gives up the GIL: a daemon thread that waits for it while Python ends aborts the process.

    What is asked instead is private: a torch that lacks it gets the public method, with that risk.
    """
    return _dispatch_keys(tensor).has(_NEGATIVE) if _dispatch_keys else tensor.is_neg()


_dispatch_keys = getattr(torch._C, "_dispatch_keys", None)
_NEGATIVE = torch._C.DispatchKey.Negative if _dispatch_keys else None


def written(name: str, tensor: torch.Tensor) -> None:
    """Tell autograd that a kernel writes here: where it needs the old values, its backward pass then fails as usual."""
    if tensor.requires_grad:
        raise ConfigError(f"{name} requires a gradient, and kernels write past autograd; pass {name}.detach()")
    torch.autograd.graph.increment_version(tensor)


def check_device(name: str, device: torch.device) -> None:
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{name} must be on the CPU or on a CUDA device, got {device}")


def check_apart(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    if tensor.device != other.device:
        raise ConfigError(f"{name} is on {tensor.device}, {other_name} on {other.device}")
    start, other_start = tensor.data_ptr(), other.data_ptr()
    overlap = min(start + tensor.nbytes, other_start + other.nbytes) - max(start, other_start)
    if overlap > 0 and tensor.numel() and other.numel():
        raise ConfigError(f"{name} and {other_name} overlap in {overlap} bytes of memory")


def outputs(
    into: tuple[torch.Tensor, ...] | None,
    inputs: Sequence[torch.Tensor],
    **wanted: tuple[int | None, torch.dtype],
) -> tuple[torch.Tensor, ...]:
    """Return the tensors to write results to: new ones on the device of the inputs, or those of `into` when checked.

    Args:
        into: the caller's memory, if any.
        inputs: what they may not overlap.
        wanted: for each result its name, its elements (None: a tensor ()), and its dtype.
    """
    if into is None:
        return tuple(
            torch.empty(() if numel is None else numel, dtype=dtype, device=inputs[0].device)
            for numel, dtype in wanted.values()
        )
    if not isinstance(into, tuple) or len(into) != len(wanted):
        raise ConfigError(f"into must be a tuple ({', '.join(wanted)})")
    for position, (name, (numel, dtype)) in enumerate(wanted.items()):
        tensor = into[position]
        check_tensor(f"into: {name}", tensor if numel is not None else tensor.reshape(-1), (dtype,))
        if tensor.shape != (() if numel is None else (numel,)):
            shape = "()" if numel is None else f"({numel},)"
            raise ConfigError(f"into: {name} must be of shape {shape}, got {tuple(tensor.shape)}")
        for other in (*inputs, *into[:position]):
            check_apart(f"into: {name}", tensor, "another tensor of the call", other)
    return into


def check_indices(first_bad: int, indices: torch.Tensor, of: torch.Tensor) -> None:
    if first_bad >= 0:
        raise MismatchError(
            f"index {int(indices[first_bad])} at position {first_bad} of {indices.numel()} lies outside "
            f"0..{of.numel() - 1}"
        )


def checked_int(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r} is not a whole number in {low}..{high}")
    return int(value)


def check_bits(bits: int) -> None:
    if not is_whole(bits) or bits not in (2, 4, 8):
        raise ConfigError(f"bits = {bits!r} is not 2, 4 or 8")


def checked_float(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    return float(value)


def checked_k(k: int, numel: int) -> int:
    if isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise ConfigError(f"k must be an int, got {k!r}; for a ratio pass int(ratio * numel)")
    k = int(k)
    if not 0 <= k <= numel:
        raise ConfigError(f"k = {k} lies outside 0..{numel}, the number of elements")
    return k


def one_float(name: str, scale: float | torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return one fp32 number where `out` lies."""
    if not isinstance(scale, torch.Tensor):
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
            raise ConfigError(f"{name} must be a number or a tensor of one, got {scale!r}")
        return torch.full((), float(scale), dtype=torch.float32, device=out.device)
    check_tensor(name, scale if scale.dim() else scale.reshape(1), (torch.float32,))
    if scale.numel() != 1:
        raise ConfigError(f"{name} must be one element, got {scale.numel()}")
    check_apart(name, scale, "out", out)
    return scale
