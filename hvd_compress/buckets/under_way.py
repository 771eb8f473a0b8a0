"""What a program sees in the place of a gradient that is being exchanged."""

from __future__ import annotations

from typing import Any

import torch

from hvd_compress.errors import UsageError

ASKED = (torch.Tensor.requires_grad.__get__, torch.Tensor.is_sparse.__get__)  # type: ignore[attr-defined]
"""They tell nothing of values, and hooks behind ours ask: of a retired Horovod optimizer, and of a profile."""


class UnderWay(torch.Tensor):
    """Stands in `parameter.grad` between backward() and synchronize(), and raises UsageError when it is used.

    What it would show is neither this rank's gradient nor the result, and what is done to it (clipping, unscaling)
    would be lost, or differ between ranks. It has the gradient's shape, and memory for one element.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED:
            return False
        raise UsageError(
            "a gradient was used after backward() and before synchronize(), while it is being exchanged: call "
            "optimizer.synchronize() first, then use or change gradients, then call step() within "
            "`with optimizer.skip_synchronize():`"
        )


def stand_in(gradient: torch.Tensor) -> torch.Tensor:
    """Return what is put into the place of a gradient."""
    return torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape).as_subclass(UnderWay)
