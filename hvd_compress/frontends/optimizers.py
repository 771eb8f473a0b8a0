"""What a front end sees of the optimizers that train a model: learning rates, and a momentum of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hvd_compress.compressors import Compressor
from hvd_compress.errors import ConfigError

ANY = 0.5
"""A momentum, where it is asked whether a compression minds one."""


def learning_rates_of(optimizers: Sequence[Any]) -> Callable[[], list[float]]:
    """Return what gives the learning rates of optimizers, by group; none of one that is no more."""
    known = [weakref.ref(optimizer) for optimizer in optimizers]

    def rates() -> list[float]:
        alive = [optimizer for optimizer in (ref() for ref in known) if optimizer is not None]
        return [float(group["lr"]) for each in alive for group in each.param_groups if "lr" in group]

    return rates


def trains(optimizer: Any, parameters: Iterable[torch.Tensor]) -> bool:
    """Whether an optimizer has any of these parameters."""
    mine = {id(parameter) for parameter in parameters}
    return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])


def state_tensors(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return what an optimizer remembers of parameters in floating-point tensors, such as momenta, in their order.

    Of what is sharded this rank's shards.
    """
    found = [each for parameter in parameters for each in optimizer.state.get(parameter, {}).values()]
    tensors = [each for each in found if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]


def check_momentum(compressor: Compressor, optimizer: Any) -> None:
    """Raise ConfigError where an optimizer has a momentum of its own and the compression has one, too.

    One that gives a compression itself, as those of hvd_compress.optim, adapts as that wants it.
    """
    if not compressor.refuses_momentum(ANY, adapts=True):
        return
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wraps one
    own = optimizer.compression().compressor if hasattr(optimizer, "compression") else None
    for group in optimizer.param_groups:
        momentum = float((group["betas"][0] if group.get("betas") else group.get("momentum")) or 0.0)
        adapts = ("eps" in group or bool(group.get("betas"))) and not isinstance(compressor, type(own))
        if remedy := compressor.refuses_momentum(momentum, adapts):
            has = f"{type(optimizer).__name__} has a momentum of its own ({momentum:g})"
            has = has if momentum else f"{type(optimizer).__name__} adapts to squares of gradients"
            raise ConfigError(f"{has}, and {compressor} has a momentum, too: {remedy}")


def load_in_place(optimizer: torch.optim.Optimizer, load: Callable[[], object]) -> None:
    """Load a state, and keep the parameter groups: a learning-rate scheduler that was made before goes on turning them.

    Args:
        load: what may put others in their place.
    """
    groups, state = optimizer.param_groups, optimizer.state
    load()
    loaded_state = dict(optimizer.state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        loaded = dict(loaded)
        group.clear()
        group.update(loaded)
    state.clear()
    state.update(loaded_state)
    optimizer.param_groups, optimizer.state = groups, state
