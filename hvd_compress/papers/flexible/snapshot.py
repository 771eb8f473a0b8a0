"""Everything that training changes, kept in memory, so that steps can be taken back to the bit."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hvd_compress.errors import ConfigError

Restore = Callable[[], None]
"""Brings back what was kept; it may be called more than once."""


def keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Iterable[Any] = ()) -> Restore:
    """Keep a copy of all that a step of training changes; return what brings it back.

    That is: parameters with their gradients, buffers (those that are not saved, too), the modes of modules, the
    optimizer's state and settings, and the global generators of torch (CPU and CUDA), numpy and Python. Tensors come
    back in their own memory, so that whoever refers to them sees it.

    Args:
        others: what else a step changes, such as a position in the data, a scheduler of learning rates, a GradScaler:
            anything with state_dict() and load_state_dict(), or a generator with get_state() and set_state().

    Raises:
        ConfigError: one of `others` has neither.
    """
    kept = [_keep_state(other) for other in others]  # first, as it may be refused
    parameters = dict.fromkeys(p for p in [*model.parameters(), *_parameters(optimizer)])
    kept += [_keep_tensor(tensor) for tensor in [*parameters, *model.buffers()]]
    kept += [_keep_gradient(parameter) for parameter in parameters]
    kept += [_keep_module(module) for module in model.modules()]
    kept += [_keep_optimizer(optimizer), *_keep_generators()]

    def restore() -> None:
        for each in kept:
            each()

    return restore


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _keep_tensor(tensor: torch.Tensor) -> Restore:
    copied = tensor.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            tensor.copy_(copied)

    return restore


def _keep_gradient(parameter: torch.Tensor) -> Restore:
    gradient = parameter.grad
    content = _keep_tensor(gradient) if gradient is not None else None

    def restore() -> None:
        parameter.grad = gradient
        if content is not None:
            content()

    return restore


def _keep_module(module: torch.nn.Module) -> Restore:
    """Its mode, and which tensors its buffers are: `self.mean = 0.9 * self.mean + ...` puts another one there."""
    training, buffers = module.training, dict(module._buffers)

    def restore() -> None:
        module.training = training
        for name, buffer in buffers.items():
            if module._buffers[name] is not buffer:  # never so in a scripted module, whose buffers are not to be set
                module._buffers[name] = buffer

    return restore


def _keep_optimizer(optimizer: torch.optim.Optimizer) -> Restore:
    """Not by its state_dict(): loading that would give state the dtype of its parameter."""
    state = {parameter: _Kept(value) for parameter, value in optimizer.state.items()}
    groups = [(group, _Kept({k: v for k, v in group.items() if k != "params"})) for group in optimizer.param_groups]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update({parameter: value.back() for parameter, value in state.items()})
        for group, settings in groups:
            parameters = group["params"]
            group.clear()
            group.update({"params": parameters, **settings.back()})

    return restore


def _keep_state(holder: Any) -> Restore:
    if callable(getattr(holder, "state_dict", None)) and callable(getattr(holder, "load_state_dict", None)):
        get, put = holder.state_dict, holder.load_state_dict
    elif callable(getattr(holder, "get_state", None)) and callable(getattr(holder, "set_state", None)):
        get, put = holder.get_state, holder.set_state
    else:
        raise ConfigError(
            f"an object of type {type(holder).__name__} cannot be taken back: pass objects with state_dict() and "
            "load_state_dict() that hold what the step changes besides model and optimizer, such as the place in the "
            "data"
        )
    state = copy.deepcopy(get())
    return lambda: put(copy.deepcopy(state))


def _keep_generators() -> list[Restore]:
    kept: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        kept.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kept.append((numpy.random.set_state, numpy.random.get_state()))
    return [_calling(put, state) for put, state in kept]


def _calling(put: Callable[[Any], object], state: Any) -> Restore:
    def restore() -> None:
        put(state)

    return restore


class _Kept:
    """A value that may hold tensors somewhere within dictionaries, lists and tuples."""

    def __init__(self, value: Any) -> None:
        self._value = value
        if isinstance(value, torch.Tensor):
            self._content = _keep_tensor(value)
        elif isinstance(value, Mapping):
            self._parts = {key: _Kept(part) for key, part in value.items()}
        elif type(value) in (list, tuple):
            self._parts = dict(enumerate(map(_Kept, value)))
        else:
            self._value = copy.deepcopy(value)

    def back(self) -> Any:
        """Return the value as it was: a tensor itself, with its old content, and copies of all else."""
        value = self._value
        if isinstance(value, torch.Tensor):
            self._content()
            return value
        if isinstance(value, Mapping):
            return {key: part.back() for key, part in self._parts.items()}
        if type(value) in (list, tuple):
            return type(value)(part.back() for part in self._parts.values())
        return copy.deepcopy(value)
