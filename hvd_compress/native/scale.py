"""A sum made an average."""

from __future__ import annotations

import torch

from hvd_compress.native.checks import check_tensor, checked_float, written
from hvd_compress.native.module import CODES, on, prepare


def scale(x: torch.Tensor, factor: float) -> bool:
    """Multiply x by `factor`, rounded to fp32; return whether every element of it is finite then.

    One pass over memory. There is no CUDA kernel.

    Args:
        x: (n,) fp32, fp16 or bf16; the product is taken in fp32 and rounded once.
        factor: any number.
    """
    check_tensor("x", x)
    factor = checked_float("factor", factor)
    written("x", x)
    prepare(like=x)
    finite: bool = on(x).scale(x.data_ptr(), CODES[x.dtype], factor, x.numel())
    return finite
