"""Bytes over MPI: mpi4py's buffer calls on the tensors' own memory. Importing this module starts MPI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hvd_compress.engines import layout, limits, mpi_hosts
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS, Capabilities
from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.engines.mpi_algorithms import CARRIER, forced_communicators, forcible_algorithms
from hvd_compress.engines.mpi_library import MPI
from hvd_compress.engines.mpi_shutdown import watch
from hvd_compress.engines.pairwise import PairwiseEngine
from hvd_compress.engines.pool import Offer, Pool
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError

__all__ = ["MpiEngine", "forcible_algorithms"]

_SUM_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
}
_MOVE_TYPES = {1: MPI.UINT8_T, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T}
"""What is not summed moves as integers of its size, so that MPI need not know the dtype."""

PIECE_BYTES = 1 << 20
"""Of a collective among ranks of one host: what is made of it stays in the cache, and its memory is not given back."""


RING_SHARD_BYTES = 1 << 24
"""From there on, a rank, an allreduce among hosts goes around a ring where no algorithm is asked for: that needs memory
for a shard alone. What is smaller goes to owners of shards and back, in 2 rounds (benchmarks/results/netlab.md)."""


class _Communicators(NamedTuple):
    """What an engine has: one for each algorithm of allreduce that can be forced, and one for all else."""

    plain: MPI.Intracomm
    forced: dict[str, MPI.Intracomm]


_pools: dict[tuple[int, ...], Pool[_Communicators]] = {}
"""By the ranks in COMM_WORLD."""
_meetings: dict[tuple[int, ...], MPI.Intracomm] = {}
"""By the same: where they agree on what a pool lends. Made when there is something to lend."""
_LOOK_S = 0.002


class MpiEngine(PairwiseEngine):
    """Collectives of mpi4py over duplicates of `comm` (default COMM_WORLD), or over those of its ranks in `ranks`.

    The constructor is collective over those ranks. It takes the communicators of an earlier engine over the same ranks
    that was closed or dropped on all of them, or makes new ones: one, and one for each algorithm of allreduce, which it
    tries, so `capabilities.algorithms` holds what was seen to run; the algorithms of broadcast and all-gather live on
    the same communicators (`mpi_algorithms.CARRIER`). No memory is copied on the way to MPI, but by an all-to-all
    within one host. Allreduce and broadcast take tensors of any size, the other verbs up to 2^31 - 1 elements over all
    ranks (UnsupportedError above). An allreduce among ranks of one host goes in pieces (`piece_bytes`), a large one
    among hosts around a ring.

    Raises UnsupportedError without MPI_THREAD_MULTIPLE, ConfigError where this rank is not in `ranks`.
    """

    name = "MPI"
    library = MPI.Get_library_version().rstrip("\0").partition("\n")[0].partition(",")[0]

    def __init__(self, comm: MPI.Intracomm | None = None, ranks: Sequence[int] | None = None) -> None:
        super().__init__()
        _require_threads()
        self._comm, self._forced = _borrow(self, comm or MPI.COMM_WORLD, ranks)
        self.rank, self.world_size = self._comm.rank, self._comm.size
        self.ranks, self.job_size = _in_world(self._comm, range(self.world_size)), MPI.COMM_WORLD.size
        verbs = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")
        watch(self)
        if self.world_size == 1:
            self.capabilities = Capabilities(verbs, ALGORITHMS, tuple(_SUM_TYPES), BROADCASTS, ALLGATHERS, splits=True)
            return
        broadcasts = tuple(name for name in BROADCASTS if CARRIER["broadcast", name] in self._forced)
        allgathers = tuple(name for name in ALLGATHERS if CARRIER["allgather", name] in self._forced)
        forced = tuple(self._forced)
        self.capabilities = Capabilities(verbs, forced, tuple(_SUM_TYPES), broadcasts, allgathers, splits=True)

    @property
    def piece_bytes(self) -> int | None:
        """Within one host a collective costs microseconds, and a large one waits for memory and page faults."""
        return PIECE_BYTES if self._hosts is not None and not self.among_hosts else None

    def _carrier(self, verb: str, algorithm: str) -> MPI.Intracomm:
        """Return the communicator on which Open MPI runs `algorithm` for `verb`."""
        return self._forced.get(CARRIER.get((verb, algorithm), ""), self._comm)

    @property
    def _sleeps(self) -> bool:
        """Whether to wait asleep: among hosts. The same on all ranks, as calls that block match no others."""
        return self.among_hosts

    @property
    def takes_shorter(self) -> bool:  # type: ignore[override]
        return self._sleeps

    def _swap(
        self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], most: Sequence[int] | None = None
    ) -> None:
        most = [tensor.numel() for tensor in sent] if most is None else most
        incoming = [(s, mpi_hosts.messages(received[s])) for s, _ in self.partners()]
        outgoing = [(d, mpi_hosts.messages(sent[d], most[d])) for _, d in self.partners()]
        inbox = [self._comm.Irecv(_to_move(m), rank) for rank, messages in incoming for m in messages]
        outbox = [self._comm.Isend(_to_move(m), rank) for rank, messages in outgoing for m in messages]
        mpi_hosts.finish(*inbox, *outbox)

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        if algorithm == "auto" and self._sleeps:
            self._allreduce_asleep(tensor)
            return
        comm, piece_bytes = self._forced.get(algorithm, self._comm), self.piece_bytes
        most = limits.MAX_COUNT if piece_bytes is None else piece_bytes // tensor.element_size()
        for part in torch.split(tensor, most):
            comm.Allreduce(MPI.IN_PLACE, _to_sum(part), op=MPI.SUM)

    def _allreduce_asleep(self, tensor: torch.Tensor) -> None:
        for part in torch.split(tensor, limits.MAX_COUNT):
            if part.nbytes >= RING_SHARD_BYTES * self.world_size:
                mpi_hosts.ring(self._comm, part, _to_sum)
            else:
                self._allreduce_by_owners(part)

    def _allgather_into(
        self, out: torch.Tensor, tensor: torch.Tensor, lengths: Sequence[int], algorithm: str
    ) -> list[torch.Tensor]:
        limits.require_countable(out.numel())
        if algorithm == "auto" and self._sleeps:
            return super()._allgather_into(out, tensor, lengths, algorithm)
        if algorithm == "auto":
            self._comm.Allgatherv(_to_move(tensor), [_memory(out), list(lengths), _move_type(tensor)])
        else:
            received = [_memory(out), tensor.numel(), _move_type(tensor)]  # so many from each rank
            self._carrier("allgather", algorithm).Allgather(_to_move(tensor), received)
        return list(torch.split(out, list(lengths)))

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        for part in torch.split(tensor, limits.MAX_COUNT):
            if algorithm == "auto" and self._sleeps:
                mpi_hosts.finish(self._comm.Ibcast(_to_move(part), root))
            else:
                self._carrier("broadcast", algorithm).Bcast(_to_move(part), root)

    def _alltoall(self, parts: Sequence[torch.Tensor], lengths: Sequence[int] | None) -> list[torch.Tensor]:
        sent = [part.numel() for part in parts]
        received = self._swap_lengths(sent) if lengths is None else list(lengths)
        limits.require_countable(sum(sent))
        if self._sleeps:
            return super()._alltoall(parts, received)
        outgoing, incoming = torch.cat(tuple(parts)), _empty(sum(received), parts[0])
        kind = _move_type(incoming)
        self._comm.Alltoallv([_memory(outgoing), sent, kind], [_memory(incoming), received, kind])
        return list(torch.split(incoming, received))

    def _swap_lengths(self, sent: Sequence[int]) -> list[int]:
        if self._sleeps:
            return super()._swap_lengths(sent)
        mine, theirs = torch.tensor(sent), torch.empty(self.world_size, dtype=torch.int64)
        self._comm.Alltoall([_memory(mine), 1, MPI.INT64_T], [_memory(theirs), 1, MPI.INT64_T])
        return theirs.tolist()

    def _reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        limits.require_countable(tensor.numel())
        if self._sleeps:
            return super()._reduce_scatter(tensor)
        lengths = layout.shard_lengths(tensor.numel(), self.world_size)
        mine = tensor.new_empty(lengths[self.rank])
        self._comm.Reduce_scatter(_to_sum(tensor), _to_sum(mine), lengths, op=MPI.SUM)
        return mine

    def _gather(self, tensor: torch.Tensor, root: int, lengths: Sequence[int] | None) -> list[torch.Tensor] | None:
        lengths = self._exchange_lengths(tensor.numel()) if lengths is None else list(lengths)
        limits.require_countable(sum(lengths))  # on every rank, though the root alone receives them
        if self._sleeps:
            return super()._gather(tensor, root, lengths)
        if self.rank != root:
            self._comm.Gatherv(_to_move(tensor), None, root)
            return None
        gathered = _empty(sum(lengths), tensor)
        self._comm.Gatherv(_to_move(tensor), [_memory(gathered), lengths, _move_type(tensor)], root)
        return list(torch.split(gathered, lengths))

    def _exchange_lengths(self, numel: int) -> list[int]:
        if self._sleeps:
            return super()._exchange_lengths(numel)
        mine, lengths = torch.tensor([numel]), torch.empty(self.world_size, dtype=torch.int64)
        self._comm.Allgather([_memory(mine), 1, MPI.INT64_T], [_memory(lengths), 1, MPI.INT64_T])
        return lengths.tolist()

    def _split(self, members: Sequence[int]) -> MpiEngine:
        return MpiEngine(self._comm, members)

    def abandon(self) -> None:
        self._spoil()
        fail_at_exit(_abort)


def await_all(timeout_s: float) -> None:
    """Return when all ranks of the job have called this; MPI itself would wait without a limit.

    Raises CommunicationError where some have not after timeout_s: the job ends with this process.
    """
    met, end = MPI.COMM_WORLD.Ibarrier(), time.monotonic() + timeout_s
    while not met.Test():
        if time.monotonic() > end:
            fail_at_exit(_abort)
            raise CommunicationError(
                f"rank {MPI.COMM_WORLD.rank}: not all {MPI.COMM_WORLD.size} ranks have called init() within "
                f"{timeout_s:g} s: some have ended, have called shutdown() earlier, or take another branch"
            )
        time.sleep(_LOOK_S)


def _abort() -> None:
    """End the job, unless MPI has ended already: Horovod's background thread ends it when another rank leaves."""
    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(1)


def _require_threads() -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UnsupportedError(
            "the MPI engine needs MPI_THREAD_MULTIPLE, but MPI was started with less: do not set "
            "HOROVOD_MPI_THREADS_DISABLE or mpi4py.rc.thread_level, or launch with torchrun, or say "
            ".by(engine='horovod')"
        )


def _borrow(engine: MpiEngine, comm: MPI.Intracomm, ranks: Sequence[int] | None) -> _Communicators:
    """Return communicators for an engine alone, until it is closed or dropped. Collective over `ranks` of `comm`."""
    if ranks is not None and comm.rank not in ranks:
        raise ConfigError(f"rank {comm.rank} asked for an engine over ranks {list(ranks)}, which leave it out")
    key = tuple(_in_world(comm, range(comm.size) if ranks is None else ranks))
    pool = _pools.setdefault(key, Pool())

    def meet(offer: Offer) -> list[Offer]:
        if not pool.made:  # on any rank, as all of them make it
            return [offer]
        if key not in _meetings:
            _meetings[key] = _duplicate(comm, ranks)
        return _meetings[key].allgather(offer)

    def make() -> _Communicators:
        plain = _duplicate(comm, ranks)
        return _Communicators(plain, forced_communicators(plain) if plain.size > 1 else {})

    return pool.lend(engine, meet, make, thorough=comm == MPI.COMM_WORLD)


def _duplicate(comm: MPI.Intracomm, ranks: Sequence[int] | None) -> MPI.Intracomm:
    return comm.Dup() if ranks is None else comm.Create_group(comm.group.Incl(list(ranks)))


def _in_world(comm: MPI.Intracomm, ranks: Sequence[int]) -> list[int]:
    found: list[int] = MPI.Group.Translate_ranks(comm.group, list(ranks), MPI.COMM_WORLD.group)
    return found


def _memory(tensor: torch.Tensor) -> MPI.buffer:
    """Return the tensor's own memory: the caller holds the tensor for as long as MPI works on it."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _to_sum(tensor: torch.Tensor) -> list[Any]:
    return [_memory(tensor), tensor.numel(), _SUM_TYPES[tensor.dtype]]


def _to_move(tensor: torch.Tensor) -> list[Any]:
    return [_memory(tensor), tensor.numel(), _move_type(tensor)]


def _move_type(tensor: torch.Tensor) -> MPI.Datatype:
    return _MOVE_TYPES[tensor.element_size()]


def _empty(numel: int, like: torch.Tensor) -> torch.Tensor:
    limits.require_countable(numel)
    return like.new_empty(numel)
