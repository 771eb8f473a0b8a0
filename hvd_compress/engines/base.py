"""The interface behind which bytes move: blocking collectives on flat tensors, called from one thread."""

from __future__ import annotations

import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from hvd_compress.checks import is_whole
from hvd_compress.engines import wire
from hvd_compress.engines.calls import Call, Ledger, Tally, Timed, in_ledger
from hvd_compress.engines.capabilities import Capabilities
from hvd_compress.engines.hosts import host_identity, numbered
from hvd_compress.engines.layout import AtMost, Lengths, check_root, checked_lengths
from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS, BROADCASTS, ENGINES
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError

__all__ = ["ALGORITHMS", "ALLGATHERS", "BROADCASTS", "ENGINES", "Call", "Capabilities", "Engine"]


class Engine(ABC):
    """Collectives over a fixed group of ranks.

    All verbs block, take contiguous one-dimensional tensors (on the CPU; some engines take others, see capabilities),
    and must be called by every rank of the group in the same order, from one thread. Errors of the transport rise as
    they are; the pipeline adds rank, bucket and step.

    Attributes:
        library: what moves the bytes, with its version.
        ranks: by rank its number in the whole job, and `job_size` how many that has.
        in_flight: buckets that are best exchanged at a time among hosts, so that the line works while one waits.
        tracks_asked: how many a user asks for instead (HVD_COMPRESS_IN_FLIGHT).
        takes_shorter: whether it can receive less than there is memory for, by AtMost. The same on all ranks.
        calls: one Call a collective until somebody takes them with `take_calls`.
        running: whether a collective runs now.
        pending: which, in words, for the message of a timeout; `place` says for what rank, step and bucket.
        lost: why no collective can run any more, if so.
        tally: how many collectives have begun and ended here.
        put_back: lets a later engine have what this one moves bytes by, where a pool has lent it.

    All from `calls` to `lost` are shared with the engines that were split from this one, and with `control`.
    """

    name: str
    library: str = ""
    rank: int
    world_size: int
    ranks: Sequence[int]
    job_size: int
    in_flight: int = 2
    tracks_asked: int | None = None
    takes_shorter: bool = False
    _swap_at_most: Callable[[Sequence[torch.Tensor], AtMost], list[torch.Tensor]]
    capabilities: Capabilities

    calls: list[Call] = in_ledger()
    pending: str = in_ledger()
    place: str = in_ledger()
    running: bool = in_ledger()
    lost: str | None = in_ledger()

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.tally = Tally()
        self.put_back: weakref.finalize[..., Engine] | None = None
        # Who uses one holds it: what is dropped is put back.
        self._children: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._twins: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._is_twin = False
        self._groups: dict[str, Engine | None] = {}
        self._hosts: tuple[int, ...] | None = None
        self._closed = False

    @property
    def job_rank(self) -> int:
        """The number of this rank in the whole job, by which messages name it."""
        return self.ranks[self.rank]

    @property
    def control(self) -> Engine:
        """The engine that takes small tensors on the CPU: this one, unless it takes a GPU's memory alone."""
        return self

    @property
    def device(self) -> torch.device:
        """Where tensors lie that are made to measure this engine."""
        return torch.device(self.capabilities.devices[0])

    @property
    def hosts(self) -> tuple[int, ...]:
        """By rank, the number of the host it runs on: from 0, in the order of the first rank on each.

        Raises UsageError before `locate`, but for one rank alone.
        """
        if self._hosts is None:
            if self.world_size == 1:
                return (0,)
            raise UsageError(f"call locate() of the {self.name} engine on all ranks before its hosts are asked for")
        return self._hosts

    @property
    def among_hosts(self) -> bool:
        """Whether a network lies between ranks. The same on all; false before `locate`."""
        return self._hosts is not None and len(set(self._hosts)) > 1

    @property
    def tracks(self) -> int:
        """How many buckets are exchanged at a time: as a user says, or several among hosts, so that the line works
        while one waits."""
        if self.tracks_asked is not None:
            return self.tracks_asked
        return self.in_flight if self.among_hosts and self.capabilities.splits else 1

    @property
    def piece_bytes(self) -> int | None:
        """How much a collective best moves at a time; None where one call moves all, whatever its size.

        The same on all ranks. allreduce() heeds it by itself; who works on what another verb moves cuts it so.
        """
        return None

    def locate(self) -> tuple[int, ...]:
        """Find out which ranks share a host, and return `hosts`. Collective; it belongs to no step."""
        if self._hosts is None:
            self._hosts = numbered(self.allgather_json(host_identity()))
            self.capabilities = replace(self.capabilities, hosts=self._hosts, takes_shorter=self.takes_shorter)
        return self._hosts

    def split(self, color: int | None) -> Engine | None:
        """Return a smaller engine over the ranks that passed the same color, in the order of their ranks here.

        Collective over all ranks of this engine. None takes part in no group, and gets None. The smaller engine is
        closed and abandoned with this one, and its collectives are recorded here, each with the bytes in its own group.

        Raises UnsupportedError where `capabilities.splits` is false, ConfigError, on all ranks alike, where a color is
        no whole number.
        """
        assert not self._is_twin, (
            "threads would make groups in different orders: a collective that makes some says in_groups"
        )
        if not self.capabilities.splits:
            raise UnsupportedError(self._no_split())
        valid = color is None or is_whole(color)
        colors = self.allgather_json(color if valid else repr(color))
        for rank, other in enumerate(colors):
            if isinstance(other, str):
                raise ConfigError(f"the color of a split must be a whole number or None, not {other} (rank {rank})")
        if color is None:
            self._leave_out()
            return None
        members = [rank for rank, other in enumerate(colors) if other == color]
        child = self._split(members)
        self._adopt(child)
        if self._hosts is not None:
            child._hosts = numbered([self._hosts[rank] for rank in members])
            child.capabilities = replace(child.capabilities, hosts=child._hosts, takes_shorter=child.takes_shorter)
        return child

    def twin(self) -> Engine:
        """Return another engine over the same ranks, for another thread: its collectives may run beside those of this.

        Collective. It is closed and abandoned with this one, and what it runs is recorded in itself. Make no group of
        it: ranks would make them in the order of their threads.

        Raises UnsupportedError where `capabilities.splits` is false.
        """
        if not self.capabilities.splits:
            raise UnsupportedError(
                f"the {self.name} engine exchanges one bucket at a time here: unset HVD_COMPRESS_IN_FLIGHT, or say "
                ".by(engine='mpi') of the compression, in a job that mpirun has launched"
            )
        twin = self._split(range(self.world_size))
        self._twins.add(twin)
        twin._is_twin = True
        if self._hosts is not None:
            twin._hosts = self._hosts
            twin.capabilities = replace(twin.capabilities, hosts=self._hosts, takes_shorter=twin.takes_shorter)
        return twin

    def group(self, name: str, color: int | None) -> Engine | None:
        """Return what split(color) gave when it was called with this name first: the same engine in each step.

        Collective the first time: all ranks of this engine name their groups in the same order.
        """
        if name not in self._groups:
            self._groups[name] = self.split(color)
        return self._groups[name]

    def _adopt(self, child: Engine) -> None:
        """Record the collectives of `child` here, and close it with this engine."""
        child._record_in(self.ledger)
        self._children.add(child)

    def _record_in(self, ledger: Ledger) -> None:
        self.ledger = ledger
        for child in self._children:
            child._record_in(ledger)

    def _no_split(self) -> str:
        return f"the {self.name} engine cannot be split into smaller groups"

    def _split(self, members: Sequence[int]) -> Engine:
        """Return an engine over these ranks of this one. Called by all of them; others call it with their own group."""
        raise NotImplementedError

    def _leave_out(self) -> None:  # noqa: B027 (most engines have nothing to do)
        """Called instead of `_split` on a rank that takes part in no group."""

    def require(self, verb: str, algorithm: str = "auto", dtype: torch.dtype | None = None) -> None:
        """Raise UnsupportedError, or ConfigError for an unknown name, unless this engine can do what is asked."""
        self.capabilities.require(self.name, self.world_size, verb, algorithm, dtype)

    def allreduce(self, tensor: torch.Tensor, algorithm: str = "auto") -> None:
        """Replace `tensor` by the sum over all ranks, bit-identical on all of them."""
        self.require("allreduce", algorithm, tensor.dtype)
        self.capabilities.require_layout(self.name, tensor)
        sent = wire.allreduce(tensor.nbytes, self.world_size, algorithm)
        with self._timed("allreduce", algorithm, sent, tensor.nbytes):
            self._allreduce(tensor, algorithm)

    def allgather(
        self,
        tensor: torch.Tensor,
        lengths: Lengths = None,
        algorithm: str = "auto",
        out: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Return every rank's tensor, in rank order. `algorithm` is "auto" or one of ALLGATHERS.

        Lengths may differ and may be zero. `lengths` are the numel of all ranks where the caller knows them, which
        saves the round in which they are exchanged; they must be the same on all ranks, and true but for AtMost. An
        algorithm can be forced where they are given and all equal (ConfigError else): libraries choose for those only.
        With `out`, (sum(lengths),) of the same dtype, what is returned lies there; it must not overlap `tensor`.
        """
        self.require("allgather", algorithm)
        self.capabilities.require_layout(self.name, tensor)
        lengths = checked_lengths(lengths, tensor.numel(), self)
        exact = None if isinstance(lengths, AtMost) else lengths
        if algorithm != "auto" and (exact is None or len(set(exact)) > 1):
            raise ConfigError(
                f"algorithm {algorithm!r} of an allgather needs equal lengths, given by the caller, not {lengths}: "
                "leave it at 'auto'"
            )
        if out is not None:
            self.capabilities.require_layout(self.name, out)
            if exact is None or out.numel() != sum(exact) or out.dtype != tensor.dtype:
                raise ConfigError(f"out of {out.numel()} x {out.dtype} does not fit lengths {lengths} x {tensor.dtype}")
        with self._timed("allgather", algorithm, wire.allgather(tensor.nbytes, self.world_size), tensor.nbytes):
            if isinstance(lengths, AtMost):
                return self._swap_at_most([tensor] * self.world_size, lengths)
            if out is not None and exact is not None:
                return self._allgather_into(out, tensor, exact, algorithm)
            return self._allgather(tensor, exact, algorithm)

    def broadcast(self, tensor: torch.Tensor, root: int, algorithm: str = "auto") -> None:
        """Replace `tensor` by that of rank `root`. All ranks pass the same dtype and numel.

        `algorithm` is "auto" or one of BROADCASTS; the names of pipelines carry the size of their segments.
        """
        self.require("broadcast", algorithm)
        self.capabilities.require_layout(self.name, tensor)
        check_root(root, self)
        sent = wire.broadcast(tensor.nbytes, self.world_size, algorithm)
        with self._timed("broadcast", algorithm, sent, tensor.nbytes):
            self._broadcast(tensor, root, algorithm)

    def alltoall(self, parts: Sequence[torch.Tensor], lengths: Lengths = None) -> list[torch.Tensor]:
        """Send `parts[r]` to rank r; return what each rank sent here, in rank order. One dtype, any lengths.

        `lengths` are the numel of what each rank sends here, where the caller knows them, which saves the round in
        which they are exchanged; either all ranks pass them or none, and they must be true, but for AtMost.
        """
        self.require("alltoall")
        if len(parts) != self.world_size or len({part.dtype for part in parts}) != 1:
            raise ConfigError(f"alltoall takes {self.world_size} parts of one dtype, not {[p.dtype for p in parts]}")
        for part in parts:
            self.capabilities.require_layout(self.name, part)
        lengths = checked_lengths(lengths, parts[self.rank].numel(), self)
        total = sum(part.nbytes for part in parts)
        with self._timed("alltoall", "auto", total - parts[self.rank].nbytes, total):
            return self._swap_at_most(parts, lengths) if isinstance(lengths, AtMost) else self._alltoall(parts, lengths)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of the sum over all ranks; shard r is `layout.shard(numel, world_size, r)`."""
        self.require("reduce_scatter", dtype=tensor.dtype)
        self.capabilities.require_layout(self.name, tensor)
        sent = wire.reduce_scatter(tensor.nbytes, self.world_size)
        with self._timed("reduce_scatter", "auto", sent, tensor.nbytes):
            return self._reduce_scatter(tensor)

    def gather(
        self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None = None
    ) -> list[torch.Tensor] | None:
        """Return every rank's tensor on rank `root`, None elsewhere. Lengths may differ; `lengths` as allgather()."""
        self.require("gather")
        self.capabilities.require_layout(self.name, tensor)
        check_root(root, self)
        checked_lengths(lengths, tensor.numel(), self)
        with self._timed("gather", "auto", wire.gather(tensor.nbytes, self.world_size), tensor.nbytes):
            return self._gather(tensor, root, lengths)

    def take_calls(self) -> list[Call]:
        """Return the calls finished since the last time, and forget them."""
        calls, self.calls = self.calls, []
        return calls

    def note(self, call: Call) -> None:
        """A collective has ended without an error."""
        self.calls.append(call)

    @contextmanager
    def aside(self) -> Iterator[list[Call]]:
        """What runs within belongs to no step: its calls go to the list that this yields, and not to `calls`."""
        of_steps, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = of_steps

    def allgather_json(self, value: Any) -> list[Any]:
        """Return what every rank passed, in rank order: anything that JSON knows. It belongs to no step."""
        # Cloned: a thread of gloo may be the last to hold it. To free a bytearray it would need Python's lock, and a
        # process that is ending would abort.
        raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).clone()
        with self.aside():
            return [json.loads(bytes(answer.numpy())) for answer in self.control.allgather(raw)]

    def _timed(self, verb: str, algorithm: str, sent_bytes: int, size_bytes: int) -> Timed:
        if self._closed:
            raise UsageError(f"this {self.name} engine is closed")
        return Timed(self, verb, algorithm, sent_bytes, size_bytes)

    @abstractmethod
    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None: ...

    @abstractmethod
    def _allgather(self, tensor: torch.Tensor, lengths: Sequence[int] | None, algorithm: str) -> list[torch.Tensor]: ...

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        """For an engine that chooses itself where it receives."""
        parts = list(torch.split(out, list(lengths)))
        for part, received in zip(parts, self._allgather(tensor, lengths, algorithm), strict=True):
            part.copy_(received)
        return parts

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None: ...

    @abstractmethod
    def _alltoall(self, parts: Sequence[torch.Tensor], lengths: Sequence[int] | None) -> list[torch.Tensor]: ...

    @abstractmethod
    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _gather(self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None) -> list[torch.Tensor] | None: ...

    def abort(self, why: str) -> None:
        """End what runs: it raises CommunicationError that says `why`, as does all that comes. The process goes on.

        Any thread may call it, at any time, and again. It covers the engines that were split from this one. Other ranks
        notice as they do when a rank is gone.

        Raises UnsupportedError where `capabilities.aborts` is false.
        """
        raise UnsupportedError(f"the {self.name} engine cannot be aborted: what another rank does not join never ends")

    @abstractmethod
    def abandon(self) -> None:
        """Called once after a failure that may have left a collective unfinished: make sure that the process can end.

        Without it an exit could wait for ever for ranks that are gone. It covers the engines that were split from this
        one.
        """

    def close(self) -> None:
        """Let later engines have what this one and those split from it hold. Local; they run nothing any more.

        What no pool has lent belongs to its maker, and goes on.
        What has failed, or is in a collective, keeps it. Dropping an engine does the same.
        """
        self._closed = self.put_back is not None
        for one in (*self._children, *self._twins):
            one.close()
        if self.put_back is not None:
            self.put_back()

    def _spoil(self) -> None:
        """Let no later engine have what this one and those split from it hold."""
        self.tally.spoiled = True
        for one in (*self._children, *self._twins):
            one._spoil()
