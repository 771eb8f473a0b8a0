"""Whether results are finite, in as few passes over memory as it takes."""

from __future__ import annotations

import torch

CHUNK = 1 << 18
"""Elements that stay in a core's cache between two operations."""


def all_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Whether no element is NaN or infinite, as a tensor () of bool; in one pass, where the host need not wait."""
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    if tensor.device.type == "cpu" and bool(torch.isfinite(tensor.sum())):  # faster; but it may overflow
        return torch.ones((), dtype=torch.bool, device="cpu")
    low, high = torch.aminmax(tensor)  # both are NaN as soon as one element is
    return torch.isfinite(low) & torch.isfinite(high)


def spoiled(values: torch.Tensor, finite: bool | torch.Tensor) -> torch.Tensor:
    """Fill `values` with NaN where a bucket is not finite, perhaps at none of them: all ranks must see it."""
    if isinstance(finite, torch.Tensor):  # on a device, where the host does not look
        return values.masked_fill_(finite == 0, torch.nan)
    return values if finite else values.fill_(torch.nan)


def scale_finite(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """Multiply a flat tensor by `scale`, and return whether all of it is finite then, as all_finite()."""
    if tensor.device.type != "cpu":
        return all_finite(tensor.mul_(scale))
    sums = [chunk.mul_(scale).sum() for chunk in torch.split(tensor, CHUNK)]
    if bool(torch.isfinite(torch.stack(sums)).all()):
        return torch.ones((), dtype=torch.bool, device="cpu")
    return all_finite(tensor)
