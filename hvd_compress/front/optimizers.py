"""What a front end sees of the optimizers that train a model: learning rates, and a momentum of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from hvd_compress.compressors import Compressor
from hvd_compress.errors import ConfigError


def learning_rates_of(optimizers: Sequence[Any]) -> Callable[[], list[float]]:
    """Return what gives the learning rates of optimizers, by group; none of one that is no more."""
    known = [weakref.ref(optimizer) for optimizer in optimizers]

    def rates() -> list[float]:
        alive = [optimizer for optimizer in (ref() for ref in known) if optimizer is not None]
        return [float(group["lr"]) for each in alive for group in each.param_groups if "lr" in group]

    return rates


def check_momentum(compressor: Compressor, optimizer: Any) -> None:
    """Raise ConfigError where an optimizer has a momentum of its own and the compression has one, too.

    One that gives its compression itself, as those of hvd_compress.optim, fits.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wraps one
    if hasattr(optimizer, "compression"):
        return
    for group in optimizer.param_groups:
        adapts = "betas" in group
        momentum = group["betas"][0] if adapts else group.get("momentum", 0.0)
        if remedy := compressor.refuses_momentum(float(momentum), adapts):
            own = f"{type(optimizer).__name__} has a momentum of its own ({float(momentum):g})"
            raise ConfigError(f"{own}, and {compressor} has one, too: {remedy}")
