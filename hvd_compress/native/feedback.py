"""Error feedback by itself."""

from __future__ import annotations

import torch

from hvd_compress.native.checks import feedback_out
from hvd_compress.native.module import fed, on, prepare


def accumulate(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None) -> bool | torch.Tensor:
    """Write corrected = residual + grad to `out`; return whether every element of it is finite.

    One pass over memory. Of CUDA tensors the answer is a tensor () int32, 1 or 0: to look into it is to wait for it.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        out: (n,) of the residual's dtype; the residual itself if None.
    """
    out = feedback_out(grad, residual, out)
    prepare(like=out)
    finite: bool | torch.Tensor = on(out).accumulate(*fed(grad, residual, out))
    return finite
