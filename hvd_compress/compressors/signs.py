"""Packed signs of chunks, by the native kernels."""

from __future__ import annotations

import torch

from hvd_compress import native


def pack_signs(x: torch.Tensor, bits: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
    """Write the signs of x + added to `bits` (ceil(n / 8),) uint8, 1 for what is not below zero; `x` stays as it is.

    Args:
        x: (n,) fp32, fp16 or bf16.
        added: (n,) fp32; None adds nothing.

    Returns:
        mean |x + added|, () fp32: not finite exactly where an element is not.
    """
    if added is None:
        added = torch.zeros(x.numel(), dtype=torch.float32, device=x.device)
    # Of EF-sign's kernels the one that needs a single pass: what it would keep with scale 0 is thrown away.
    nothing = torch.zeros((), dtype=torch.float32, device=x.device)
    scale = torch.empty_like(nothing)
    native.sign_accumulate_kept(x, added, nothing, out=torch.empty_like(added), into=(bits, scale))
    return scale


def add_signs(bits: torch.Tensor, out: torch.Tensor) -> None:
    """Add 1 to `out` (n,) where a bit is 1, and -1 where it is 0."""
    native.sign_add(bits, 1.0, out, 1.0)
