"""Processes of their own that own rows: what trainers tell them."""

from __future__ import annotations

from typing import Any, Protocol

from hvd_compress.checks import is_whole
from hvd_compress.embedding.group import Roles, agree, connect
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UsageError


class Closable(Protocol):
    def close(self) -> None: ...


class Servers:
    """Processes of their own that own the rows of tables: the last ranks of the job. The others train.

    Both make one, with the same arguments. Then servers call serve(), and trainers pass it to each Lookahead; serve()
    returns when trainers call close().

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
        if not is_whole(count, 1, world - 1):
            raise ConfigError(f"{count!r} servers among {world} ranks: 1 to {world - 1}, please")
        self.roles = Roles(tuple(range(world - count)), tuple(range(world - count, world)))
        self.here = self._engine.rank in self.roles.owners
        self._opened: list[Closable] = []
        self._closed = False

    @property
    def trainers(self) -> list[int]:
        return list(self.roles.trainers)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """close(), by trainers, but behind an error of the program, which other ranks need not have."""
        if kind is None and not self.here:
            self.close()

    def close(self) -> None:
        """Close each Lookahead that has these servers, and let serve() return. Collective over trainers; training ends.

        Raises:
            UsageError: this rank is a server.
        """
        if self.here:
            raise UsageError("a server is closed by the trainers: let it call serve()")
        if not self._closed:
            for each in self._opened:
                each.close()
            self.tell(-1, "end")
            self._closed = True

    def add(self, loader: Closable) -> int:
        """Return the number of a Lookahead that is opened. Raises UsageError where serve() has returned."""
        if self._closed:
            raise UsageError("these servers are closed: close them behind the last loop")
        self._opened.append(loader)
        return len(self._opened) - 1

    def tell(self, number: int, verb: str, message: Any = None) -> None:
        """Tell servers what trainers do next with a Lookahead. Collective over all ranks.

        Raises:
            UsageError: a server cannot, or trainers do different things.
        """
        self._exchange([number, verb, message])

    def wait(self) -> tuple[int, str, Any]:
        """Return what trainers do next: the number of a Lookahead, a verb and a message."""
        number, verb, message = self._exchange(None)
        return number, verb, message

    def refuse(self, why: str = "") -> None:
        """Trainers hear what a server has to say of what they want. Collective over all ranks; "" refuses nothing.

        Raises:
            ConfigError: a server refuses; on all ranks alike.
        """
        for words in self._engine.allgather_json(why):
            if words:
                raise ConfigError(words)

    def _exchange(self, said: Any) -> Any:
        answers = self._engine.allgather_json(said)
        commands = [answers[rank] for rank in self.roles.trainers]
        for rank, command in enumerate(commands):
            if command is None or command != commands[0]:
                raise UsageError(
                    f"rank {rank} {_words(command)}, and rank 0 {_words(commands[0])}: all trainers must do the same "
                    "with a Lookahead that has servers, and servers must call serve()"
                )
        return commands[0]


def _words(command: Any) -> str:
    if command is None:
        return "calls serve()"
    return "closes the servers" if command[1] == "end" else f"wants to {command[1]} Lookahead {command[0]}"
