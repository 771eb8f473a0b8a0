"""Error feedback by itself."""

from __future__ import annotations

import torch

from hvd_compress.native.checks import feedback_out
from hvd_compress.native.module import fed, on, prepare


def accumulate(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None) -> bool:
    """Write corrected = residual + grad to `out`; return whether every element of it is finite.

    One pass over memory.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        out: (n,) of the residual's dtype; the residual itself if None.
    """
    out = feedback_out(grad, residual, out)
    prepare(like=out)
    return bool(on(out).accumulate(*fed(grad, residual, out)))
