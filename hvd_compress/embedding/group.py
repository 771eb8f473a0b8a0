"""Who takes part in exchanges of rows: the ranks that train, those that own rows, and the engines between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    @property
    def served(self) -> bool:
        """Whether there are ranks that do not train."""
        return self.owners != self.trainers


@dataclass(frozen=True)
class Engines:
    """Three over the same ranks, each for a thread of its own: what is told of batches, and the lanes of exchanges."""

    told: Engine
    critical: Engine
    later: Engine

    @classmethod
    def connect(cls, asked: str | Engine) -> Engines:
        """Return engines of our own over all ranks: of one that exists, or of the job's front end. Collective."""
        if isinstance(asked, Engine):
            engines = cls(*(asked.twin() for _ in range(3)))
        else:
            engines = cls(*(connect(asked) for _ in range(3)))
        for engine in (engines.told, engines.critical, engines.later):
            engine.locate()
        return engines


class Servers:
    """Processes of their own that own the rows of tables: the last ranks of the job. The others train.

    Both make one, with the same arguments. Then servers call serve(), and trainers pass it to each Lookahead; the
    servers are done when all of these are closed.

    Attributes:
        here: whether this process is a server.
        trainers: the ranks that train, such as for Horovod's process set, or torch's group.
    """

    def __init__(self, count: int, *, engine: str | Engine = "auto") -> None:
        """Connect with all ranks of the job, servers and trainers. Collective over them.

        Args:
            count: servers, 1 or more.
            engine: its name, or one that exists.

        Raises:
            ConfigError: no rank would train; or ranks want different numbers of servers.
        """
        self.asked = engine
        self._engine = engine if isinstance(engine, Engine) else connect(engine)
        world = self._engine.world_size
        agree(self._engine, {"the number of servers": count})
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < world:
            raise ConfigError(f"{count!r} servers among {world} ranks: 1 to {world - 1}, please")
        self.roles = Roles(tuple(range(world - count)), tuple(range(world - count, world)))
        self.here = self._engine.rank in self.roles.owners
        self._opened = 0

    @property
    def trainers(self) -> list[int]:
        return list(self.roles.trainers)

    def number(self) -> int:
        """Return the number of the next Lookahead."""
        self._opened += 1
        return self._opened - 1

    def tell(self, number: int, verb: str, settings: dict[str, Any] | None = None) -> None:
        """Tell servers what trainers do next with a Lookahead. Collective over all ranks.

        Raises:
            UsageError: a server cannot, or trainers do different things.
        """
        self._exchange([number, verb, settings])

    def told(self) -> tuple[int, str, dict[str, Any]]:
        """Return what trainers have told."""
        number, verb, settings = self._exchange(None)
        return number, verb, settings or {}

    def _exchange(self, said: Any) -> Any:
        answers = self._engine.allgather_json(said)
        commands = [answers[rank] for rank in self.roles.trainers]
        for rank, command in enumerate(commands):
            if command is None or command != commands[0]:
                raise UsageError(
                    f"rank {rank} {_words(command)}, and rank 0 {_words(commands[0])}: all trainers must do the same "
                    "with a Lookahead that has servers, and servers must call serve()"
                )
        for rank in self.roles.owners:
            if answers[rank] is not None:
                raise UsageError(f"rank {rank} is a server, and {_words(answers[rank])}: let it call serve()")
        return commands[0]


def connect(name: str) -> Engine:
    """Over torch.distributed where the program has initialised it, else over Horovod."""
    from hvd_compress.engines.select import choose_engine, choose_torch_engine

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return choose_torch_engine(name).control
    return choose_engine(name).control


def agree(engine: Engine, offer: dict[str, Any]) -> None:
    """Raise ConfigError, on all ranks alike, unless all offer the same; names are for messages."""
    offers: Sequence[dict[str, Any]] = engine.allgather_json(offer)
    for rank, other in enumerate(offers):
        for name in sorted(offers[0].keys() | other.keys()):
            if offers[0].get(name) != other.get(name):
                raise ConfigError(
                    f"all ranks must ask for the same embeddings: {name} is {offers[0].get(name)} on rank 0 and "
                    f"{other.get(name)} on rank {rank}"
                )


def _words(command: Any) -> str:
    return "calls serve()" if command is None else f"wants to {command[1]} Lookahead {command[0]}"
