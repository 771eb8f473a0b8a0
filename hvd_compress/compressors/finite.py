"""Whether results are finite, in as few passes over memory as it takes."""

from __future__ import annotations

import torch

from hvd_compress import native


def all_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Whether no element is NaN or infinite, as a tensor () of bool; in one pass, where the host need not wait."""
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    if tensor.device.type == "cpu" and bool(torch.isfinite(tensor.sum())):  # faster; but it may overflow
        return torch.ones((), dtype=torch.bool, device="cpu")
    low, high = torch.aminmax(tensor)  # both are NaN as soon as one element is
    return torch.isfinite(low) & torch.isfinite(high)


def nan_unless(finite: bool | torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values`, filled with NaN unless the bucket that they are of is finite: all ranks must see it."""
    if isinstance(finite, torch.Tensor):  # perhaps on a device, where the host does not look
        return values.masked_fill_(finite == 0, torch.nan)
    return values if finite else values.fill_(torch.nan)


def scale_finite(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """Multiply a flat tensor by `scale`, and return whether all of it is finite then, as all_finite()."""
    if tensor.dtype not in native.FLOATS or tensor.numel() > native.MAX_NUMEL or not native.has_kernels(tensor.device):
        return all_finite(tensor.mul_(scale))
    finite = native.scale(tensor, scale)
    return finite != 0 if isinstance(finite, torch.Tensor) else torch.tensor(finite, device="cpu")
