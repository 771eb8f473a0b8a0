"""What every optimizer here asks of its settings and of gradients."""

from __future__ import annotations

import math

import torch

from hvd_compress.errors import ConfigError, UnsupportedError


def check_from_zero(name: str, value: object) -> None:
    """Raise ConfigError where a setting is no finite number from 0 on; a tensor of one element, as torch allows, is."""
    number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise ConfigError(f"{name} = {value!r} is not a number, 0 or more")


def check_beta(name: str, value: object) -> None:
    """Raise ConfigError where a setting is no number from 0 on, below 1; a tensor is none, as compression takes it."""
    check_from_zero(name, value)
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{name} = {value!r} is a tensor: pass a number")
    if value >= 1:
        raise ConfigError(f"{name} = {value!r} is not below 1")


def dense_gradient(parameter: torch.Tensor, optimizer: str) -> torch.Tensor | None:
    """Return the gradient of a parameter, None where it has none.

    Raises:
        UnsupportedError: it is sparse.
    """
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        raise UnsupportedError(f"{optimizer} takes no sparse gradients: make the embedding with sparse=False")
    return gradient
