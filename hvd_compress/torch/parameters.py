"""Broadcasting parameters, also where Horovod knows neither bfloat16 nor GPUs."""

from __future__ import annotations

from typing import Any

import horovod.torch
import torch

from hvd_compress.errors import ConfigError
from hvd_compress.torch.broadcasts import broadcast_async_, synchronize


@torch.no_grad()
def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Horovod's broadcast_parameters, also where it fails: tensors in bfloat16, on GPUs, and without a name.

    Built without GPU operations, Horovod takes tensors of the host only, so those of a GPU go by copies of it. Tensors
    without a name it counts on each rank, and would wait for ever where ranks have made different numbers of calls
    before; here they are counted anew.

    Args:
        params: a model's state_dict(), or a list of its parameters or named_parameters().
        root_rank: whose values all ranks get.

    Raises:
        ConfigError: `params` is neither a dict nor a list.
    """
    if isinstance(params, dict):
        params = sorted(params.items())
    if not isinstance(params, list):
        raise ConfigError(
            f"broadcast_parameters takes a dict or a list, not a {type(params).__name__}: pass model.state_dict()"
        )
    named = [e if isinstance(e, tuple) else (f"parameter.{number}", e) for number, e in enumerate(params)]
    staged = [(name, value, _reachable(value)) for name, value in named]
    for handle in [broadcast_async_(copy, root_rank, name) for name, _, copy in staged]:
        synchronize(handle)
    for _, value, copy in staged:
        if copy is not value:
            value.copy_(copy)


def _reachable(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it in the memory that Horovod takes."""
    return value.cpu() if value.is_cuda and not horovod.torch.cuda_built() else value
