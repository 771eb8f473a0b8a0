"""Broadcasting the state of an optimizer: its skeleton as one object, then every tensor in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.mpi_ops import rank

from hvd_compress.errors import ConfigError
from hvd_compress.torch.broadcasts import broadcast_async_, synchronize

_NAME = "hvd_compress.optimizer_state"


@dataclass(frozen=True)
class _Place:
    """Stands in the skeleton for a tensor: one of its shape, strides and dtype without memory, and where it lies."""

    like: torch.Tensor
    on_host: bool

    def empty(self) -> torch.Tensor:
        """Return memory of the host to receive the tensor in."""
        return torch.empty(self.like.shape, dtype=self.like.dtype)

    def fill(self, received: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return what was received as the tensor that it is on the root; `device` is that of its parameter here."""
        if self.on_host and self.like.is_contiguous():
            return received
        return torch.empty_like(self.like, device="cpu" if self.on_host else device).copy_(received)


@torch.no_grad()
def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the optimizer state of `root_rank`: tensors, counters and hyper-parameters.

    What the root has no state of has none on any rank afterwards: no step is taken to create it, as Horovod does, so
    that parameters, step counters and gradients stay as they are. Residuals stay as they are on each rank. State keeps
    its dtype and its strides; that of parameters on a GPU travels through the host.

    Args:
        optimizer: any, distributed or not. Its parameter groups keep their identity, for the sake of schedulers.
        root_rank: whose state all ranks get.
        model: not needed; it is in Horovod's signature.

    Raises:
        ConfigError: ranks have other numbers of parameters or groups; on all of them, before anything has changed.
    """
    groups = optimizer.param_groups
    _check_same([len(group["params"]) for group in groups])
    parameters = [parameter for group in groups for parameter in group["params"]]
    is_root = rank() == root_rank
    moving: list[torch.Tensor] = []
    skeleton: Any = None
    if is_root:
        state = {number: optimizer.state[p] for number, p in enumerate(parameters) if p in optimizer.state}
        options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        skeleton = _replace((state, options), torch.Tensor, partial(_take_out, moving))
    skeleton = broadcast_object(skeleton, root_rank, name=_NAME)
    if not is_root:
        _replace(skeleton, _Place, lambda place: moving.append(place.empty()))
    for handle in [broadcast_async_(t, root_rank, f"{_NAME}.{number}") for number, t in enumerate(moving)]:
        synchronize(handle)
    if is_root:
        return
    received = iter(moving)
    state, options = skeleton
    optimizer.state.clear()
    for number, value in state.items():
        optimizer.state[parameters[number]] = _filled(value, received, parameters[number].device)
    for group, values in zip(groups, options, strict=True):
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        group.update(_filled(values, received, device))


def _check_same(lengths: list[int]) -> None:
    """Collective: else a rank with other groups would be found when the others wait for it."""
    for other, theirs in enumerate(allgather_object(lengths, name=f"{_NAME}.groups")):
        if theirs != lengths:
            raise ConfigError(
                f"rank {rank()}: the optimizer's groups hold {lengths} parameters, and {theirs} on rank {other}: make "
                "the same optimizer on all ranks before its state is broadcast"
            )


def _take_out(moving: list[torch.Tensor], tensor: torch.Tensor) -> _Place:
    moving.append(tensor.detach().cpu().contiguous())
    return _Place(tensor.detach().to("meta"), tensor.device.type == "cpu")


def _filled(value: Any, received: Iterator[torch.Tensor], device: torch.device) -> Any:
    return _replace(value, _Place, lambda place: place.fill(next(received), device))


def _replace(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested dicts, lists and tuples with each instance of `kind` changed, in their order."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _replace(part, kind, change) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(part, kind, change) for part in value)
    return value
