"""Broadcasting parameters and optimizer state, also where Horovod knows neither bfloat16 nor GPUs."""

from __future__ import annotations

from typing import Any

import horovod.torch.functions
import torch

_horovods = horovod.torch.functions.broadcast_parameters


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Horovod's broadcast_parameters, where it fails: tensors in bfloat16, on GPUs, and without a name.

    Horovod knows no bfloat16, so they travel as the 16 bits that they are. Built without GPU operations, it takes
    tensors of the host only, so those of a GPU go by copies of it. Tensors without a name it counts on each
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
    if not isinstance(params, list) or horovod.torch.cuda_built():
        _horovods(params, root_rank)
    else:
        broadcast_through_host(params, root_rank)


@torch.no_grad()
def broadcast_through_host(params: list[tuple[str, Any]], root_rank: int) -> None:
    """Broadcast copies in the host's memory, and write what comes back where it belongs."""
    staged = [(name, value.cpu() if isinstance(value, torch.Tensor) else value) for name, value in params]
    _horovods(staged, root_rank)
    for (_, value), (_, copy) in zip(params, staged, strict=True):
        if isinstance(value, torch.Tensor) and value is not copy:
            value.copy_(copy)


def broadcast_state_through_host(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give all ranks the optimizer state of `root_rank`, without what compression remembers."""
    state = _on_host(torch.optim.Optimizer.state_dict(optimizer))
    torch.optim.Optimizer.load_state_dict(
        optimizer, horovod.torch.functions.broadcast_object(state, root_rank, name="hvd_compress.optimizer_state")
    )


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(part) for key, part in value.items()}
    return [_on_host(part) for part in value] if isinstance(value, list) else value


def _as_known(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return value.detach().view(torch.int16)
    return value
