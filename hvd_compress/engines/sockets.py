"""Bytes over sockets of our own: no message waits for a word that it may come, and what waits can be aborted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from hvd_compress.engines import layout
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.dialing import Endpoint, Listener, connect
from hvd_compress.engines.pairwise import PairwiseEngine
from hvd_compress.errors import CommunicationError
from hvd_compress.native.links import Links

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTS = (torch.int32, torch.int64, torch.int8, torch.uint8)
_OWNERS_BYTES = 1 << 20
"""Up to this size an allreduce goes to owners of shards and back, in 2 rounds; above, around a ring in 2(N-1)."""


class Meeting:
    """The ranks of a job that have met, and where they listen.

    Attributes:
        rank: this one.
        endpoints: by rank.
        listener: this rank's.
        arrivals: of some of its ranks, makes that by which they tell each other who waits; None where nothing does.
    """

    def __init__(self, rank: int, endpoints: Sequence[Endpoint], listener: Listener, name: str = "") -> None:
        """Nothing is communicated.

        Args:
            name: the same on all ranks, and another one for each meeting of the same listeners.
        """
        self.rank, self.endpoints, self.listener, self._name = rank, endpoints, listener, name
        self._why, self._lock, self._made = "", threading.Lock(), 0
        self._lives: weakref.WeakSet[_Life] = weakref.WeakSet()
        self.arrivals: Callable[[Sequence[int]], Arrivals] | None = None

    @classmethod
    def of(cls, bootstrap: Engine) -> Meeting:
        """Let the ranks of an engine tell each other where they listen. Collective over them."""
        listener = Listener()
        endpoints = [Endpoint.of(told) for told in bootstrap.allgather_json(listener.endpoint.told())]
        return cls(bootstrap.rank, endpoints, listener)

    def begin(self) -> tuple[str, _Life]:
        """Return the name of another engine, and what ends it. All ranks make their engines in one order."""
        with self._lock:
            life = _Life()
            self._lives.add(life)
            self._made += 1
            if self._why:
                life.end(self._why)
            return f"{self._name}/{self._made}", life

    def end(self, why: str) -> None:
        """End all its engines, also those that are being made: they raise CommunicationError that says why."""
        with self._lock:
            self._why = self._why or why
            lives = list(self._lives)
        for life in lives:
            life.end(self._why)


class _Life:
    """Of an engine and those that were split from it: they end together."""

    def __init__(self) -> None:
        self._why, self._lock = "", threading.Lock()
        self._links: weakref.WeakSet[Links] = weakref.WeakSet()

    def add(self, links: Links) -> None:
        with self._lock:
            self._links.add(links)
        self.require()

    def require(self) -> None:
        """Raise CommunicationError once it has ended."""
        if self._why:
            self.end(self._why)  # what has come meanwhile, too
            raise CommunicationError(self._why)

    def end(self, why: str) -> None:
        with self._lock:
            self._why = self._why or why
            for links in self._links:
                links.close()


class SocketEngine(PairwiseEngine):
    """Collectives over a connection between each two ranks; no algorithm can be forced.

    Its connections end with it, and so do those of a rank that is gone: the others notice at once, and those that are
    left may meet anew.
    """

    name = "sockets"
    library = "TCP"
    takes_shorter = True
    in_flight = 3

    def __init__(self, meeting: Meeting, timeout_s: float) -> None:
        """Connect. Collective over the ranks of the meeting.

        Args:
            timeout_s: how long ranks may take to come, and nothing may move within a collective.

        Raises CommunicationError where not all come.
        """
        self._begin(meeting, timeout_s, range(len(meeting.endpoints)), *meeting.begin())

    def _begin(self, meeting: Meeting, timeout_s: float, ranks: Sequence[int], path: str, life: _Life) -> None:
        super().__init__()
        self.ranks, self.rank, self.world_size = ranks, ranks.index(meeting.rank), len(ranks)
        self.job_size = len(meeting.endpoints)
        self._meeting, self._timeout_s, self._path, self._splits, self._life = meeting, timeout_s, path, 0, life
        self._links = connect(
            meeting.rank, dict(enumerate(meeting.endpoints)), meeting.listener, ranks, path, timeout_s, life.require
        )
        life.add(self._links)
        verbs = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")
        self.capabilities = Capabilities(verbs, (), (*_FLOATS, *_INTS), splits=True, aborts=True)

    def arrivals(self, ranks: Sequence[int]) -> Arrivals:
        """Return by what these ranks of the meeting tell each other who waits. Nothing is communicated."""
        return Arrivals() if self._meeting.arrivals is None else self._meeting.arrivals(ranks)

    def another(self) -> SocketEngine:
        """Return one over the same ranks that has nothing in common with this. Collective over all of the meeting."""
        return SocketEngine(self._meeting, self._timeout_s)

    def _split(self, members: Sequence[int]) -> SocketEngine:
        self._splits += 1
        self._life.require()
        child = SocketEngine.__new__(SocketEngine)
        ranks = [self.ranks[rank] for rank in members]
        child._begin(self._meeting, self._timeout_s, ranks, f"{self._path}/{self._splits}", self._life)
        return child

    def _leave_out(self) -> None:
        self._splits += 1

    def _swap(
        self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], most: Sequence[int] | None = None
    ) -> None:
        self._life.require()
        try:
            self._links.swap(sent, received, self._timeout_s, most is None)
        except CommunicationError as error:
            self._life.end(str(error))  # a message may be on its way, and others wait for this rank
            self._life.require()

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        if tensor.nbytes > _OWNERS_BYTES and self.world_size > 2:
            self._allreduce_around(tensor)
        elif tensor.numel():
            self._allreduce_by_owners(tensor)

    def _allreduce_around(self, tensor: torch.Tensor) -> None:
        """Sum in place along a ring, where each line has one sender and one receiver: 2(N-1) rounds of M/N bytes."""
        size, own = self.world_size, self.rank
        shards = torch.split(tensor, layout.shard_lengths(tensor.numel(), size))
        received = torch.empty_like(shards[0])
        for round_ in range(2 * (size - 1)):
            sent, coming = shards[(own - round_) % size], shards[(own - round_ - 1) % size]
            is_sum = round_ < size - 1
            self._pass_on(sent, received[: coming.numel()] if is_sum else coming)
            if is_sum:
                coming += received[: coming.numel()]

    def _pass_on(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        """Send to the rank on the right while the one on the left sends."""
        out = into = [sent[:0]] * self.world_size
        left, right = (self.rank - 1) % self.world_size, (self.rank + 1) % self.world_size
        self._swap([*into[:left], received, *into[left + 1 :]], [*out[:right], sent, *out[right + 1 :]])

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        self._broadcast_by_pairs(tensor, root)

    def abort(self, why: str) -> None:
        self._life.end(why)

    def abandon(self) -> None:
        """Let the others know: nothing here waits for them any more, so the process can end."""
        self.abort(f"rank {self.job_rank} gave up during {self.pending}")

    def close(self) -> None:
        """End the connections."""
        self._closed = True
        super().close()
        self._links.close()
