"""What ranks bring together outside of a step: collectives in the engine's thread."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

PIECE = 2**30
"""Bytes of all ranks that one collective moves."""


def numbers(figures: Sequence[float]) -> list[float]:
    """Return figures of a program as numbers. Raises ConfigError for anything else."""
    try:
        return [float(figure) for figure in figures]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"figures must be numbers: {error}") from None


def gathered(figures: Sequence[float], engine: Engine) -> list[list[float]]:
    """Return the figures of all ranks, which may bring more or fewer."""
    with engine.aside():
        ranks: list[list[float]] = engine.allgather_json(figures)
    return ranks


def require_as_many(ranks: Sequence[Sequence[float]]) -> None:
    """Raise ConfigError, on all ranks alike, where one has brought more figures than another."""
    if len({len(rank) for rank in ranks}) > 1:
        raise ConfigError(f"ranks bring {', '.join(str(len(rank)) for rank in ranks)} figures: bring as many on each")


def on_first(value: Any, engine: Engine) -> list[Any] | None:
    """Return on the first rank what all ranks bring, which pickle takes; None on others.

    In pieces, as some transports count no more than 2^31 - 1 bytes of all ranks.
    """
    mine, control = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), engine.control
    lengths = engine.allgather_json(mine.numel())
    is_first, pieces = control.rank == 0, [[mine[:0]] for _ in lengths]
    with engine.aside():
        for start in range(0, max(lengths), PIECE // len(lengths)):
            taken = [max(0, min(PIECE // len(lengths), length - start)) for length in lengths]
            piece = mine[start : start + taken[control.rank]]
            if "gather" in control.capabilities.verbs:
                found = control.gather(piece, 0, taken)
            else:  # Horovod's engine
                found = control.allgather(piece, taken)
            for kept, each in zip(pieces, found if is_first and found is not None else (), strict=False):
                kept.append(each)
    return [pickle.loads(torch.cat(each).numpy().data) for each in pieces] if is_first else None
