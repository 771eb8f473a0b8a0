"""A sum made an average."""

from __future__ import annotations

import torch

from hvd_compress.native.checks import check_tensor, checked_float, written
from hvd_compress.native.module import CODES, on, prepare


def scale(x: torch.Tensor, factor: float) -> bool | torch.Tensor:
    """Multiply x by `factor`, rounded to fp32; return whether every element of it is finite then.

    One pass over memory. Of CUDA tensors the answer is a tensor () int32, 1 or 0: to look into it is to wait for it.

    Args:
        x: (n,) fp32, fp16 or bf16; the product is taken in fp32 and rounded once.
        factor: any number.
    """
    check_tensor("x", x)
    factor = checked_float("factor", factor)
    written("x", x)
    prepare(like=x)
    finite: bool | torch.Tensor = on(x).scale(x.data_ptr(), CODES[x.dtype], x.numel(), factor)
    return finite
