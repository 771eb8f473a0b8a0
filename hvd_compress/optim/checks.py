"""What every optimizer here asks of its settings and of gradients."""

from __future__ import annotations

from typing import Any

import torch

from hvd_compress.checks import check_number
from hvd_compress.errors import UnsupportedError


def check_from_zero(name: str, value: Any) -> None:
    """Raise ConfigError where a setting is no finite number from 0 on; a tensor of one element, as torch allows, is."""
    number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    check_number(name, number, 0)


def dense_gradient(parameter: torch.Tensor, optimizer: str) -> torch.Tensor | None:
    """Return the gradient of a parameter, None where it has none.

    Raises:
        UnsupportedError: it is sparse.
    """
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        raise UnsupportedError(f"{optimizer} takes no sparse gradients: make the embedding with sparse=False")
    return gradient
