"""What every kernel asks of its arguments before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_compress.errors import ConfigError, PayloadError, UnsupportedError
from hvd_compress.native.module import FLOATS

MAX_NUMEL = 2**31 - 1
"""Elements that int32 indices reach."""


def feedback_out(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Check the three tensors of a kernel with error feedback; return the one to write to."""
    out = residual if out is None else out
    check_tensor("grad", grad)
    check_tensor("residual", residual, (torch.float32, grad.dtype))
    check_tensor("out", out, (residual.dtype,))
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor.numel() != grad.numel():
            raise ConfigError(f"{name} has {tensor.numel()} elements, grad has {grad.numel()}")
    for name, tensor in (("residual", residual), ("grad", grad)):
        if not (tensor.data_ptr() == out.data_ptr() and tensor.dtype == out.dtype):
            check_apart(name, tensor, "out", out)
    return out


def check_tensor(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...] = FLOATS) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    check_device(name, tensor.device)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ConfigError(f"{name} must be of {wanted}, got {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ConfigError(
            f"{name} must be contiguous and one-dimensional, got shape {tuple(tensor.shape)}"
            + (f" with strides {tensor.stride()}" if tensor.layout is torch.strided else f" with {tensor.layout}")
        )
    if tensor.numel() > MAX_NUMEL:
        raise ConfigError(f"{name} has {tensor.numel()} elements; int32 indices reach {MAX_NUMEL}")
    if tensor.untyped_storage().nbytes() < tensor.storage_offset() * tensor.element_size() + tensor.nbytes:
        raise ConfigError(f"{name} has no memory behind it: its storage was resized")
    if tensor.data_ptr() % tensor.element_size():
        raise ConfigError(f"{name} does not start at a multiple of its element size, {tensor.element_size()} bytes")


def check_device(name: str, device: torch.device) -> None:
    if device.type == "cuda":
        raise UnsupportedError(f"{name} is on {device}: the native kernels run on the CPU only, so far")
    if device.type != "cpu":
        raise ConfigError(f"{name} must be on the CPU, got {device}")


def check_apart(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    start, other_start = tensor.data_ptr(), other.data_ptr()
    overlap = min(start + tensor.nbytes, other_start + other.nbytes) - max(start, other_start)
    if overlap > 0 and tensor.numel() and other.numel():
        raise ConfigError(f"{name} and {other_name} overlap in {overlap} bytes of memory")


def check_into(into: tuple[torch.Tensor, torch.Tensor], k: int, others: Sequence[torch.Tensor]) -> None:
    indices, values = into
    check_tensor("indices", indices, (torch.int32,))
    check_tensor("values", values, (torch.float32,))
    if indices.numel() != k or values.numel() != k:
        raise ConfigError(f"into holds {indices.numel()} indices and {values.numel()} values instead of {k}")
    check_apart("indices", indices, "values", values)
    for other in others:
        check_apart("indices", indices, "an input", other)
        check_apart("values", values, "an input", other)


def check_indices(first_bad: int, indices: torch.Tensor, of: torch.Tensor) -> None:
    if first_bad >= 0:
        raise PayloadError(
            f"index {int(indices[first_bad])} at position {first_bad} of {indices.numel()} lies outside "
            f"0..{of.numel() - 1}"
        )


def checked_k(k: int, numel: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int):
        raise ConfigError(f"k must be an int, got {k!r}")
    if not 0 <= k <= numel:
        raise ConfigError(f"k = {k} lies outside 0..{numel}, the number of elements")
    return k


def one_float(name: str, scale: float | torch.Tensor) -> torch.Tensor:
    if not isinstance(scale, torch.Tensor):
        return torch.tensor(scale, dtype=torch.float32)
    check_tensor(name, scale if scale.dim() else scale.reshape(1), (torch.float32,))
    if scale.numel() != 1:
        raise ConfigError(f"{name} must be one element, got {scale.numel()}")
    return scale
