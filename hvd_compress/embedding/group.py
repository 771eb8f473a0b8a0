"""Who takes part in exchanges of rows: the ranks that train, those that own rows, and the engines between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Roles:
    """Which ranks of a group train, and which own rows."""

    trainers: tuple[int, ...]
    owners: tuple[int, ...]

    @classmethod
    def of_all(cls, world_size: int) -> Roles:
        return cls(tuple(range(world_size)), tuple(range(world_size)))


class Engines(NamedTuple):
    """Three over the same ranks, each for a thread of its own: what is told of batches, and the lanes of exchanges."""

    control: Engine
    critical: Engine
    later: Engine

    @classmethod
    def connect(cls, asked: str | Engine) -> Engines:
        """Return engines of our own over all ranks: of one that exists, or of the job's front end. Collective."""
        if isinstance(asked, Engine):
            engines = cls(*(asked.twin() for _ in range(3)))
        else:
            engines = cls(*(connect(asked) for _ in range(3)))
        for engine in engines:
            engine.locate()
        return engines


def connect(name: str) -> Engine:
    """Over torch.distributed where the program has initialised it, else over what hvd_compress.torch stands on."""
    from hvd_compress.engines.select import choose_engine, choose_torch_engine
    from hvd_compress.frontends.horovod.runtime_selection import hvd

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return choose_torch_engine(name).control
    return choose_engine(name, api=hvd).control


def agree(engine: Engine, offer: dict[str, Any]) -> None:
    """Raise ConfigError, on all ranks alike, unless all offer the same; names are for messages."""
    offers: Sequence[dict[str, Any]] = engine.allgather_json(offer)
    for rank, other in enumerate(offers):
        for name in sorted(offers[0].keys() | other.keys()):
            if offers[0].get(name) != other.get(name):
                raise ConfigError(
                    f"all ranks must ask for the same: {name} is {offers[0].get(name)} on rank 0 and "
                    f"{other.get(name)} on rank {rank}"
                )


def meet(engine: Engine, verb: str) -> None:
    """Wait until all ranks do this. Raise UsageError, on all ranks alike, where they do different things."""
    verbs = engine.allgather_json(verb)
    for rank, other in enumerate(verbs):
        if other != verbs[0]:
            raise UsageError(f"rank {rank} wants to {other}, and rank 0 to {verbs[0]}: all ranks must do the same")
