"""Broadcasting the state of an optimizer: pickled without its tensors, then every tensor."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.horovod.broadcasts import broadcast_async_, on_the_wire, synchronize
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.horovod.stock import is_stock
from hvd_compress.frontends.optimizer.optimizer import STATE_KEY
from hvd_compress.runtime.objects import Pickler

_NAME = "hvd_compress.optimizer_state"
_OWN = {"params", STATE_KEY}
"""What a parameter group has of this rank: its parameters, and of a checkpoint what compression remembered."""


@dataclass(frozen=True)
class _TensorSpec:
    """A tensor of the root: one of its shape, strides and dtype without memory, and where it lies.

    Attributes:
        beside: number of a parameter that lies on the same device; None for the host.
    """

    like: torch.Tensor
    beside: int | None


class _Pickler(Pickler):
    """Leaves tensors out, but for sparse ones and those of other classes. What is met twice is one on all ranks."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []  # held, so that no other one gets the same id
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if type(value) not in (torch.Tensor, nn.Parameter) or value.layout != torch.strided:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


@torch.no_grad()
def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the optimizer state of `root_rank`: tensors, counters and hyper-parameters.

    What the root has no state of has none on any rank afterwards: no step is taken to create it, as Horovod does, so
    that parameters, step counters and gradients stay as they are. But where the root has no state at all, Horovod's own
    optimizers get zeros in the place of gradients that are missing, as programs may expect them from Horovod.
    Residuals stay as they are on each rank. State keeps its dtype, its strides, and which of it is one tensor; that of
    parameters on a GPU travels through the host.

    Args:
        optimizer: any, distributed or not. Its parameter groups keep their identity, for the sake of schedulers.
        root_rank: whose state all ranks get.
        model: says which parameters get sparse zeros.

    Raises:
        ConfigError: `optimizer` is none; or ranks have other optimizers or parameters, or the root's state cannot be
            pickled; on all of them, before anything has changed.
    """
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        raise ConfigError(f"broadcast_optimizer_state takes an optimizer, not a {type(optimizer).__name__}")
    _check_same(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_root = hvd.rank() == root_rank
    data, specs, tensors, obstacle = _taken_apart(optimizer, parameters) if is_root else (b"", [], [], "")
    data, specs, obstacle = hvd.broadcast_object((data, specs, obstacle), root_rank, name=_NAME)
    if obstacle:
        raise ConfigError(f"rank {root_rank} cannot send the state of its optimizer: {obstacle}")
    moving = [tensor.cpu() for tensor in tensors] or [
        torch.empty(s.like.shape, dtype=s.like.dtype, device="cpu") for s in specs
    ]
    handles = [
        broadcast_async_(on_the_wire(tensor), root_rank, f"{_NAME}.{number}") for number, tensor in enumerate(moving)
    ]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        received = [_placed(tensor, spec, parameters) for tensor, spec in zip(moving, specs, strict=True)]
        _put_together(optimizer, parameters, *_Unpickler(data, received).load())
    if is_stock(optimizer) and not optimizer.state:
        _give_zero_gradients(optimizer, model)


def _check_same(optimizer: torch.optim.Optimizer) -> None:
    """Collective: else a rank with another optimizer would be found when the others wait for it, or never."""
    groups = [[(tuple(p.shape), str(p.dtype)) for p in group["params"]] for group in optimizer.param_groups]
    mine = (type(optimizer).__name__, groups)
    for other, theirs in enumerate(hvd.allgather_object(mine, name=f"{_NAME}.groups")):
        if theirs != mine:
            raise ConfigError(
                f"rank {hvd.rank()}: the optimizer is {_described(*mine)}, and {_described(*theirs)} on rank "
                f"{other}: make the same optimizer on all ranks before its state is broadcast"
            )


def _described(kind: str, groups: list[list[tuple[tuple[int, ...], str]]]) -> str:
    first = groups[0][0] if groups and groups[0] else "none"
    return f"{kind} with groups of {[len(group) for group in groups]} parameters, the first one {first}"


def _taken_apart(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> tuple[bytes, list[_TensorSpec], list[torch.Tensor], str]:
    """Return the pickled state, what its tensors are like, the tensors, and why it cannot be sent, or nothing."""
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    state = [(numbers.get(key), None if key in numbers else key, value) for key, value in optimizer.state.items()]
    options = [{key: value for key, value in group.items() if key not in _OWN} for group in optimizer.param_groups]
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((state, options))
    except Exception as error:  # whatever an object's own methods raise
        return b"", [], [], f"{type(error).__name__}: {error}"
    tensors = pickler.tensors
    homes = {parameter.device: number for number, parameter in reversed(list(enumerate(parameters)))}
    specs = [
        _TensorSpec(t.detach().to("meta"), None if t.device.type == "cpu" else homes.get(t.device)) for t in tensors
    ]
    return file.getvalue(), specs, [tensor.detach() for tensor in tensors], ""


def _placed(tensor: torch.Tensor, spec: _TensorSpec, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what was received with the strides of the root's tensor, where the same parameter lies here."""
    if spec.beside is None and spec.like.is_contiguous():
        return tensor
    device = "cpu" if spec.beside is None else parameters[spec.beside].device
    return torch.empty_like(spec.like, device=device).copy_(tensor)


def _put_together(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    state: list[tuple[int | None, Any, Any]],
    options: list[dict[str, Any]],
) -> None:
    optimizer.state.clear()
    for number, key, value in state:
        optimizer.state[key if number is None else parameters[number]] = value
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key in group.keys() - values.keys() - _OWN:
            del group[key]
        group.update(values)


def _give_zero_gradients(optimizer: torch.optim.Optimizer, model: Any) -> None:
    embeddings = (part for part in (model.modules() if model else ()) if getattr(part, "sparse", False))
    sparse = {id(part.weight) for part in embeddings if isinstance(part, (nn.Embedding, nn.EmbeddingBag))}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter.requires_grad and parameter.grad is None:
            zeros = torch.zeros_like(parameter)
            is_sparse = id(parameter) in sparse or isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = zeros.to_sparse() if is_sparse else zeros
