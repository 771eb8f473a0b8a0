"""This rank and the others: init(), numbers and process sets, as Horovod has them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvd_compress.engines.base import Engine
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import CommunicationError, ConfigError, HvdCompressError, NotInitializedError
from hvd_compress.membership.member import member
from hvd_compress.runtime.runtime import Runtime
from hvd_compress.runtime.start import start
from hvd_compress.settings import Settings


@dataclass(eq=False)
class World:
    """What init() has made.

    Attributes:
        hosts: by rank, the number of its host.
        sets: the process sets, by number.
    """

    runtime: Runtime
    engine: Engine
    end_engine: Callable[[], None]
    hosts: tuple[int, ...]
    sets: dict[int, ProcessSet] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def unnamed(self, verb: str) -> str:
        """Return a name for a tensor without one: the same on all ranks that call alike."""
        with self.lock:
            self.counts[verb] = self.counts.get(verb, 0) + 1
            return f"{verb}.noname.{self.counts[verb]}"

    def close(self) -> None:
        """Leave."""
        self.runtime.close()
        self.end_engine()


class ProcessSet:
    """Ranks among which collectives may run, as Horovod's. It is in use after init() or add_process_set().

    Attributes:
        process_set_id: its number; None while it is not in use.
        ranks: of the job, in ascending order.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise ConfigError(
                f"a process set is a list of ranks, not {ranks!r}: pass communicator.allgather(hvd.rank())"
            )
        self.ranks: list[int] | None = sorted(ranks)
        self.process_set_id: int | None = None
        if any(isinstance(each, bool) or not isinstance(each, int) for each in self.ranks):
            raise ConfigError(f"a process set is a list of ranks, not {list(ranks)}")

    def size(self) -> int | None:
        """Return how many ranks it has; None while it is not in use."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """Return the place of this rank in it; None where it is not in it, or it is not in use."""
        if self.process_set_id is None or world().engine.rank not in self._members():
            return None
        return self._members().index(world().engine.rank)

    def included(self) -> bool:
        """Return whether this rank is in it."""
        return world().engine.rank in self._members()

    def _members(self) -> Sequence[int]:
        return range(world().engine.world_size) if self is global_process_set else self.ranks or ()

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
"""All ranks."""
global_process_set.process_set_id = 0

_world: World | None = None
_end: Callable[[], object] = lambda: None  # noqa: E731


def world() -> World:
    """Return what init() has made. Raises NotInitializedError before it, and after shutdown()."""
    if _world is None:
        raise NotInitializedError("hvd.init() comes first: without it there are no ranks")
    return _world


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Let the ranks of the job meet. Collective over them; a second call does nothing.

    Args:
        comm: ranks of the job in ascending order, or a communicator of mpi4py, which all of them call it with; each
            such part of the ranks makes a job of its own, and so do those that are in none.
        process_sets: to add; the same on all ranks. "dynamic" says that some will be added later, which all may.

    Raises:
        ConfigError: `comm` is no list of ranks.
        UsageError: processes of a launcher cannot meet.
        CommunicationError: some of them do not come.
    """
    global _world, _end
    if _world is not None:
        return
    settings = Settings.from_environment()
    own = member(settings.timeout_s)
    while True:
        try:
            _world = _met(settings, comm)
            break
        except CommunicationError as error:
            if own is None:
                raise
            own.fail(f"init() failed: {error}")  # a rank may have ended meanwhile: those that are left meet again
    if own is not None:
        own.when_over(_world.runtime.lose)
    global_process_set.ranks = list(range(_world.engine.world_size))
    _end = at_end(_world.runtime, _world.close)
    for each in process_sets if process_sets and not isinstance(process_sets, str) else ():
        add_process_set(each)


def _met(settings: Settings, comm: Any) -> World:
    engine, end_engine = start(settings.timeout_s)
    try:
        engine = _part(engine, comm) if comm else engine
        hosts = engine.locate()
        runtime = Runtime(engine, settings.fusion_threshold_bytes, settings.timeout_s)
    except BaseException as error:
        engine.abandon()  # others may be in a collective of MPI, which the exit of this process would wait for
        end_engine()
        if isinstance(error, RuntimeError) and not isinstance(error, HvdCompressError):  # of gloo
            raise CommunicationError(f"rank {engine.rank}: init() failed, as another rank may have: {error}") from error
        raise
    return World(runtime, engine, end_engine, hosts)


def _part(engine: Engine, comm: Any) -> Engine:
    """Return an engine over those ranks of the job that are in `comm`, or one over the others. Collective over all."""
    ranks = comm.allgather(engine.rank) if hasattr(comm, "allgather") else comm  # a communicator of mpi4py
    if not isinstance(ranks, Sequence) or not all(isinstance(r, int) and 0 <= r < engine.world_size for r in ranks):
        raise ConfigError(f"init() takes ranks below {engine.world_size}, or a communicator, not {comm!r}")
    if list(ranks) != sorted(set(ranks)):
        raise ConfigError(f"init() numbers ranks in the job's order, and {list(ranks)} are in another: sort them")
    part = engine.split(1 + min(ranks) if engine.rank in ranks else 0)
    assert part is not None, "each rank has a color"
    return part


def shutdown() -> None:
    """Leave the job: collectives that need this rank fail on the others. init() may be called again.

    Raises UsageError in a signal's handler that interrupts a call which submits tensors: what it raises ends that call.
    """
    global _world
    if _world is not None:
        _world.runtime.require_closable()
        for made in _world.sets.values():
            made.process_set_id = None
        _world = None
        _end()


def _forget() -> None:
    """In a process that was forked, such as a worker of a DataLoader: it is no rank, and knows the numbers of one."""
    global _end
    if _world is not None:
        _world.runtime.forget()
        _end = lambda: None  # noqa: E731


os.register_at_fork(after_in_child=_forget)


def is_initialized() -> bool:
    """Return whether init() was called, and shutdown() was not."""
    return _world is not None


def rank() -> int:
    """Return the number of this process in the job."""
    return world().engine.rank


def size() -> int:
    """Return how many ranks the job has."""
    return world().engine.world_size


def local_rank() -> int:
    """Return the place of this rank among those of its host."""
    own = world()
    return own.hosts[: own.engine.rank].count(own.hosts[own.engine.rank])


def local_size() -> int:
    """Return how many ranks this host has."""
    own = world()
    return own.hosts.count(own.hosts[own.engine.rank])


def cross_rank() -> int:
    """Return the place of this host among those that have a rank with this local rank."""
    return _peers().index(rank())


def cross_size() -> int:
    """Return how many hosts have a rank with this local rank."""
    return len(_peers())


def _peers() -> list[int]:
    hosts, mine = world().hosts, local_rank()
    return [each for each, host in enumerate(hosts) if hosts[:each].count(host) == mine]


def is_homogeneous() -> bool:
    """Return whether all hosts have as many ranks."""
    hosts = world().hosts
    return len({hosts.count(host) for host in hosts}) == 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a process set. Collective over all ranks of the job, which name the same one.

    Raises ConfigError where there is one of these ranks, or some are none of this job.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    own, ranks = world(), tuple(made.ranks or ())
    if any(ranks == tuple(each.ranks or ()) for each in own.sets.values()) or ranks == tuple(range(size())):
        raise ConfigError(f"there is a process set of ranks {list(ranks)} already")
    if not ranks or not all(0 <= each < size() for each in ranks) or len(set(ranks)) < len(ranks):
        raise ConfigError(f"a process set has ranks below {size()}, each once, and one at least, not {list(ranks)}")
    made.process_set_id = own.runtime.add_set(ranks)
    own.sets[made.process_set_id] = made
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set; return whether it was in use. Collective over all ranks of the job."""
    number = process_set.process_set_id
    if not number:  # that of all ranks stays
        return False
    world().runtime.remove_set(number)
    del world().sets[number]
    process_set.process_set_id = None
    return True
