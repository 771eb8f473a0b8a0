"""What ranks bring together outside of a step: collectives in the engine's thread."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError


def numbers(figures: Sequence[float]) -> list[float]:
    """Return figures of a program as numbers. Raises ConfigError for anything else."""
    try:
        return [float(figure) for figure in figures]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"figures must be numbers: {error}") from None


def gathered(figures: Sequence[float], engine: Engine) -> list[list[float]]:
    """Return the figures of all ranks. Raises ConfigError, on all, where one brings more than another."""
    with engine.aside():
        ranks: list[list[float]] = engine.allgather_json(figures)
    return ranks


def require_as_many(ranks: Sequence[Sequence[float]]) -> None:
    """Raise ConfigError, on all ranks alike, where one has brought more figures than another."""
    if len({len(rank) for rank in ranks}) > 1:
        raise ConfigError(f"ranks bring {', '.join(str(len(rank)) for rank in ranks)} figures: bring as many on each")


def on_first(value: Any, engine: Engine) -> list[Any] | None:
    """Return on the first rank what all ranks bring, which pickle takes; None on others."""
    mine, control = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), engine.control
    parts: Sequence[torch.Tensor] | None
    with engine.aside():
        if "gather" in control.capabilities.verbs:
            parts = control.gather(mine, 0)
        else:  # Horovod's engine
            every = control.allgather(mine)
            parts = every if control.rank == 0 else None
    return None if parts is None else [pickle.loads(part.numpy().data) for part in parts]
