"""N ranks as threads of one process, over queues: for tests, and for running a collective without a launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from hvd_compress.engines import algorithms
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS, Capabilities, Engine
from hvd_compress.engines.hosts import numbered
from hvd_compress.errors import CommunicationError, ConfigError

Result = TypeVar("Result")

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class InProcessWorld:
    """The queues between `world_size` ranks, and their engines.

    A rank that waits longer than `timeout_s` seconds for a message raises CommunicationError instead of hanging.

    Args:
        hosts: by rank, a number for the host that it plays to run on: (0, 0, 1, 1). Without it ranks are where the
            process is, which `Engine.locate` finds out.

    Raises:
        ConfigError: `hosts` has not one number for each rank.
    """

    def __init__(self, world_size: int, timeout_s: float = 60.0, hosts: Sequence[int] | None = None) -> None:
        if hosts is not None and len(hosts) != world_size:
            raise ConfigError(f"hosts={tuple(hosts)} has {len(hosts)} numbers for {world_size} ranks: one each")
        self.world_size = world_size
        self.hosts = None if hosts is None else numbered(hosts)
        self.timeout_s = timeout_s
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, tuple[int, ...]], InProcessWorld] = {}
        self._queues: list[list[SimpleQueue[torch.Tensor | None]]] = [
            [SimpleQueue() for _ in range(world_size)] for _ in range(world_size)
        ]
        self.engines = [InProcessEngine(self, rank) for rank in range(world_size)]

    def engine(self, rank: int) -> InProcessEngine:
        return self.engines[rank]

    def queue(self, source: int, destination: int) -> SimpleQueue[torch.Tensor | None]:
        """Return the messages under way from one rank to another. None among them means that the world has failed."""
        return self._queues[source][destination]

    def part(self, number: int, members: Sequence[int]) -> InProcessWorld:
        """Return the world of some ranks, the same one to each of them; `number` counts the splits."""
        with self._lock:
            key = (number, tuple(members))
            if key not in self._parts:
                self._parts[key] = InProcessWorld(len(members), self.timeout_s)
                self._parts[key].failure = self.failure
            return self._parts[key]

    def abort(self, failure: str) -> None:
        """Wake every rank that waits: its receive raises CommunicationError with `failure`, as do all later calls."""
        with self._lock:
            self.failure = self.failure or failure
            parts = list(self._parts.values())
        for part in parts:
            part.abort(failure)
        for row in self._queues:
            for queue in row:
                queue.put(None)


def _of_lengths(verb: str, lengths: Sequence[int] | None, received: list[torch.Tensor]) -> list[torch.Tensor]:
    """Check what a library would take on trust, and write beyond a buffer."""
    true_lengths = [block.numel() for block in received]
    if lengths is not None and list(lengths) != true_lengths:
        raise CommunicationError(f"{verb} was told lengths {list(lengths)}, but they are {true_lengths}")
    return received


class InProcessEngine(Engine):
    """One rank of an InProcessWorld.

    `sent_bytes` and `sent_messages` count what this rank really sent, also over the engines split from this one.
    """

    name = "in-process"

    def __init__(self, world: InProcessWorld, rank: int) -> None:
        super().__init__()
        self.world, self.rank, self.world_size = world, rank, world.world_size
        self.ranks, self.job_size = range(world.world_size), world.world_size
        self.sent_bytes = 0
        self.sent_messages = 0
        self._parent: InProcessEngine | None = None
        self._splits = 0
        verbs = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")
        self._hosts = world.hosts
        self.capabilities = Capabilities(
            verbs,
            ALGORITHMS,
            _FLOATS + _INTS,
            BROADCASTS,
            ALLGATHERS,
            splits=True,
            aborts=True,
            hosts=world.hosts or (),
        )

    def send(self, destination: int, tensor: torch.Tensor) -> None:
        """Hand a copy of `tensor` to rank `destination`, without waiting for it."""
        self._check_alive()
        self._count(tensor.numel() * tensor.element_size())
        self.world.queue(self.rank, destination).put(tensor.clone())

    def _count(self, sent_bytes: int) -> None:
        self.sent_bytes += sent_bytes
        self.sent_messages += 1
        if self._parent is not None:
            self._parent._count(sent_bytes)

    def recv(self, source: int) -> torch.Tensor:
        """Wait for the next tensor from rank `source`. Raises CommunicationError on the world's timeout or failure."""
        self._check_alive()
        try:
            message = self.world.queue(source, self.rank).get(timeout=self.world.timeout_s)
        except Empty:
            waited = f"rank {self.rank} waited {self.world.timeout_s} s for rank {source} in {self.pending}"
            raise CommunicationError(waited) from None
        if message is None:
            raise CommunicationError(self.world.failure)
        return message

    def _check_alive(self) -> None:
        if self.world.failure is not None:
            raise CommunicationError(self.world.failure)

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        algorithms.ALLREDUCE[algorithm](self, tensor)

    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]:
        return _of_lengths("allgather", lengths, algorithms.ALLGATHER[algorithm](self, tensor.clone()))

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        algorithms.BROADCAST[algorithm](self, tensor, root)

    def _alltoall(self, parts: Sequence[torch.Tensor], lengths: Sequence[int] | None) -> list[torch.Tensor]:
        return _of_lengths("alltoall", lengths, algorithms.pairwise_alltoall(self, parts))

    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        return algorithms.ring_reduce_scatter(self, tensor.clone())[self.rank].clone()

    def _gather(self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None) -> list[torch.Tensor] | None:
        gathered = algorithms.flat_gather(self, tensor.clone(), root)
        return None if gathered is None else _of_lengths("gather", lengths, gathered)

    def _split(self, members: Sequence[int]) -> InProcessEngine:
        self._splits += 1
        child = self.world.part(self._splits, members).engine(members.index(self.rank))
        child.ranks, child.job_size = [self.ranks[rank] for rank in members], self.job_size
        child._parent = self
        return child

    def _leave_out(self) -> None:
        self._splits += 1

    def abort(self, why: str) -> None:
        if self._parent is not None:
            self._parent.abort(why)
            return
        self.world.abort(why)

    def abandon(self) -> None:
        self.abort(f"rank {self.job_rank} gave up during {self.pending}")


def run_ranks(
    world_size: int,
    body: Callable[[InProcessEngine], Result],
    timeout_s: float = 60.0,
    hosts: Sequence[int] | None = None,
) -> list[Result]:
    """Run `body(engine)` in one thread a rank and return the results in rank order; `hosts` as InProcessWorld's.

    The first error wakes all other ranks and is raised here, with its type; from Python 3.11 on it also carries a note
    that says on which rank it happened.
    """
    world = InProcessWorld(world_size, timeout_s, hosts)
    results: dict[int, Result] = {}
    errors: list[tuple[int, BaseException]] = []

    def run(engine: InProcessEngine) -> None:
        try:
            results[engine.rank] = body(engine)
        except BaseException as error:
            errors.append((engine.rank, error))
            world.abort(f"rank {engine.rank} failed: {error!r}")

    threads = [threading.Thread(target=run, args=(engine,), daemon=True) for engine in world.engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        rank, error = errors[0]
        if hasattr(error, "add_note"):
            error.add_note(f"raised on rank {rank} of {world_size}")
        raise error
    return [results[rank] for rank in range(world_size)]
