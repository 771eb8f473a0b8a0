"""The parameters of an optimizer by their names, and which of them can be trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch.nn.parameter import is_lazy

from hvd_compress.errors import ConfigError, UnsupportedError


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the parameters of an optimizer with their names, in the order of its groups.

    Raises:
        ConfigError: entries that are no (name, tensor), duplicate or missing names, a parameter without a shape yet.
        UnsupportedError: a parameter that is neither on the CPU nor on a CUDA device.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        indexed = ((i, j, p) for i, g in enumerate(optimizer.param_groups) for j, p in enumerate(g["params"]))
        entries = [(f"noname.{i}.{j}", parameter) for i, j, parameter in indexed]
    else:
        entries = list(named_parameters)
    if any(not isinstance(entry, tuple) or len(entry) != 2 for entry in entries):
        raise ConfigError("named_parameters must be (name, parameter) tuples, usually model.named_parameters()")
    counts = Counter(name for name, _ in entries)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        raise ConfigError(f"names in named_parameters must be unique; these come twice: {', '.join(duplicates)}")
    names = {parameter: name for name, parameter in entries}
    unnamed = [tuple(p.shape) for p in parameters if p not in names]
    if unnamed:
        raise ConfigError(
            f"{len(unnamed)} of the optimizer's {len(parameters)} parameters have no name in named_parameters; "
            f"their shapes are {unnamed[:5]}: pass model.named_parameters() of the whole model"
        )
    named = {parameter: names[parameter] for parameter in parameters}
    for parameter, name in trainable(named).items():
        if is_lazy(parameter):
            raise ConfigError(
                f"parameter {name!r} has no shape yet, as the first forward pass of a lazy module gives it one: run a "
                "forward pass of the model, on every rank, before the optimizer is wrapped"
            )
        if parameter.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(
                f"parameter {name!r} is on {parameter.device}, and gradients are compressed on the CPU or on CUDA "
                "devices: move the model there before the optimizer is wrapped"
            )
    return named


def trainable(names: Mapping[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    """Return those that are not frozen now."""
    return {parameter: name for parameter, name in names.items() if parameter.requires_grad}
