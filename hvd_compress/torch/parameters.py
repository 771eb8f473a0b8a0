"""Broadcasting parameters, bfloat16 ones included."""

from __future__ import annotations

from typing import Any

import horovod.torch.functions
import torch

_horovods = horovod.torch.functions.broadcast_parameters


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Horovod's broadcast_parameters, where it fails: tensors in bfloat16, and tensors without a name.

    Horovod knows no bfloat16, so they travel as the 16 bits that they are. Tensors without a name it counts on each
    rank, and would wait for ever where ranks have made different numbers of calls before; here they are counted anew.

    Args:
        params: a model's state_dict(), or a list of its parameters or named_parameters().
        root_rank: whose values all ranks get.
    """
    if isinstance(params, dict):
        params = sorted(params.items())
    if isinstance(params, list):
        named = [e if isinstance(e, tuple) else (f"parameter.{number}", e) for number, e in enumerate(params)]
        params = [(name, _as_known(value)) for name, value in named]
    _horovods(params, root_rank)


def _as_known(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return value.detach().view(torch.int16)
    return value
