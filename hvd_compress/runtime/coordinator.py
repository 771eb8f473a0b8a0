"""Which tensors are moved next, in which order: one answer for all ranks, found where all their requests meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hvd_compress.runtime.request import (
    ADASUM,
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    JOIN,
    REDUCESCATTER,
    REMOVE_SET,
    Request,
    Response,
)

ROWS_DIFFER = (ALLGATHER, ALLTOALL)
"""Verbs whose tensors may have another first dimension on each rank."""
BEAR_ABSENCE = (ALLREDUCE, BARRIER)
"""Verbs in which those that have joined take part with zeros."""

_Key = tuple[int, str]


@dataclass
class _Waiting:
    """A tensor for which not all members have asked. `asked` is by rank; `since` the time of the first."""

    since: float
    asked: dict[int, Request] = field(default_factory=dict)
    warned: bool = False


class Coordinator:
    """Matches requests by process set and name (Sergeev and Del Balso 2018, section 4), and fuses what is small.

    It has no thread, no clock and no network: `now` is the caller's, in seconds.

    Args:
        world_size: ranks of the job.
        fusion_bytes: tensors are moved as one up to this size, in bytes; a group whatever its size.
    """

    def __init__(self, world_size: int, fusion_bytes: int) -> None:
        self._sets: dict[int, tuple[int, ...]] = {0: tuple(range(world_size))}
        self._next_set = 1
        self._fusion_bytes = fusion_bytes
        self._waiting: dict[_Key, _Waiting] = {}
        self._complete: dict[_Key, dict[int, Request]] = {}
        self._answers: list[Response] = []
        self._joined: dict[int, None] = {}  # in their order
        self._gone: dict[int, str] = {}
        self._late: dict[tuple[int, _Key], str] = {}

    @property
    def waits(self) -> bool:
        """Whether anything waits for a rank."""
        return bool(self._waiting)

    def submit(self, rank: int, request: Request, now: float) -> None:
        """Rank `rank` asks for something. Once for each name until that is answered."""
        key = request.members, request.name
        if (late := self._late.pop((rank, key), None)) is not None:
            self._answers.append(Response((request,), late, (rank,), missing=True))
            return
        self._waiting.setdefault(key, _Waiting(now)).asked[rank] = request
        self._look_at(key)

    def join(self, rank: int) -> None:
        """Rank `rank` has no more to ask for: it takes part with zeros until all have joined."""
        self._joined[rank] = None
        self._look_at_all()

    def leave(self, rank: int, why: str) -> None:
        """Rank `rank` will never ask again: "has shut down", "is gone"."""
        self._gone.setdefault(rank, why)
        self._joined.pop(rank, None)
        for key, asked in list(self._complete.items()):
            if rank in self._sets[key[0]]:
                del self._complete[key]
                self._refuse(key, asked, f"rank {rank} {why}", missing=True)
        self._look_at_all()

    def first_gone(self) -> str:
        """Say who was the first to leave, and how; "" before any has."""
        return next((f"rank {rank} {why}" for rank, why in self._gone.items()), "")

    def take(self) -> list[Response]:
        """Return what is to be done now, in order, fused."""
        groups: dict[_Key, list[_Key]] = {}
        for key, asked in self._complete.items():
            groups.setdefault((key[0], _first(asked).group[0] or f"tensor {key[1]}"), []).append(key)
        singles: list[Response] = []
        for keys in groups.values():
            if keys[0] not in self._complete:  # its process set was removed just now
                continue
            if len(keys) < min(each.group[1] for each in self._complete[keys[0]].values()):
                continue  # its other tensors are waited for
            members = {key: self._complete.pop(key) for key in keys}
            problem = next(
                filter(None, (self._problem(self._sets[key[0]], asked) for key, asked in members.items())), ""
            )
            for key, asked in members.items():
                if problem:
                    own = self._problem(self._sets[key[0]], asked)
                    self._refuse(key, asked, own or f"another tensor of its group does not fit: {problem}")
                else:
                    singles.append(self._answered(key, asked))
        answers, self._answers = [*self._answers, *self._fused(singles)], []
        if self._joined and len(self._joined) == len(self._sets[0]):
            answers.append(Response((Request(JOIN, JOIN),), last=list(self._joined)[-1]))
            self._joined.clear()
        return answers

    def overdue(self, now: float, after_s: float) -> Iterator[tuple[Request, list[int], float]]:
        """Yield, once each, what has waited so long: the request, the ranks that are missing, and the seconds."""
        for (members, _), waiting in self._waiting.items():
            if not waiting.warned and now - waiting.since > after_s:
                waiting.warned = True
                yield _first(waiting.asked), self._missing(members, waiting), now - waiting.since

    def give_up(self, now: float, after_s: float) -> None:
        """Answer what has waited so long by an error that names who is missing; they get it when they come."""
        for key, waiting in list(self._waiting.items()):
            if now - waiting.since <= after_s:
                continue
            missing = self._missing(key[0], waiting)
            words = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            why = f"{words} did not submit it within {after_s:g} s, as {_listed(waiting.asked)} did"
            self._refuse(key, self._waiting.pop(key).asked, why, missing=True, silent=True)
            for rank in missing:
                self._late[rank, key] = f"other ranks gave it up: {words} did not submit it within {after_s:g} s"

    def _missing(self, members: int, waiting: _Waiting) -> list[int]:
        return [rank for rank in self._sets[members] if rank not in waiting.asked and rank not in self._joined]

    def _look_at_all(self) -> None:
        gone = next((rank for rank in self._gone if rank not in self._joined), None)
        if self._joined and gone is not None:
            why = f"{JOIN}: rank {gone} {self._gone[gone]}"
            self._answers.append(Response((Request(JOIN, JOIN),), why, tuple(self._joined), missing=True))
            self._joined.clear()
        for key in list(self._waiting):
            self._look_at(key)

    def _look_at(self, key: _Key) -> None:
        asked, members = self._waiting[key].asked, self._sets.get(key[0])
        outside = [rank for rank in asked if rank not in (members or ())]
        gone = [rank for rank in self._gone if rank in (members or ())]  # the first one perhaps the cause of others
        why = ""
        if members is None or outside:
            why = f"process set {key[0]} has no rank {outside[0]}" if members else f"there is no process set {key[0]}"
        elif gone:
            why = f"rank {gone[0]} {self._gone[gone[0]]}"
        elif self._missing(key[0], self._waiting[key]):
            return
        del self._waiting[key]
        if why or members is None:
            self._refuse(key, asked, why, missing=bool(gone))
        else:
            self._complete[key] = {rank: asked[rank] for rank in members if rank in asked}

    def _refuse(
        self, key: _Key, asked: Mapping[int, Request], why: str, *, missing: bool = False, silent: bool = False
    ) -> None:
        first = _first(asked)
        words = f"{first.verb} of {key[1]!r}: {why}"
        self._answers.append(Response((first,), words, tuple(sorted(asked)), missing=missing, silent=silent))

    def _problem(self, members: Sequence[int], asked: Mapping[int, Request]) -> str:
        """Say what does not fit: both sides of it."""
        first, *others = sorted(asked)
        for rank in others:
            if _kind(asked[rank]) != _kind(asked[first]):
                return f"rank {first} wants {asked[first].describe()}, and rank {rank} {asked[rank].describe()}"
        request = asked[first]
        absent = [rank for rank in members if rank not in asked]
        if absent and request.verb not in BEAR_ABSENCE:
            return f"rank {absent[0]} has joined, and takes part in allreduces and barriers alone"
        if request.verb in (*ROWS_DIFFER, REDUCESCATTER) and not all(each.shape for each in asked.values()):
            return "a tensor without dimensions has no rows: pass tensor.reshape(1)"
        if request.root >= 0 and request.root not in members:
            return f"its root, rank {request.root}, is not in the process set of ranks {list(members)}"
        for rank, each in asked.items():
            if each.verb == ALLTOALL and (
                len(each.splits) != len(members) or min(each.splits) < 0 or sum(each.splits) != each.shape[0]
            ):
                return (
                    f"rank {rank} has splits {list(each.splits)}, which must be a number of rows for each of "
                    f"{len(members)} ranks, {each.shape[0]} in all"
                )
        return ""

    def _answered(self, key: _Key, asked: Mapping[int, Request]) -> Response:
        members = self._sets[key[0]]
        first = _first(asked)
        sizes: tuple[object, ...] = ()
        if first.verb == ALLGATHER:
            sizes = tuple(each.shape[0] for each in asked.values())
        elif first.verb == ALLTOALL:
            sizes = tuple(each.splits for each in asked.values())
        number = -1
        if first.verb == ADD_SET:
            number = self._next_set
            self._next_set += 1
            self._sets[number] = first.shape
        elif first.verb == REMOVE_SET:
            self._remove_set(first.shape[0])
        return Response((first,), sizes=sizes, last=number, absent=tuple(rank for rank in members if rank not in asked))

    def _remove_set(self, number: int) -> None:
        self._sets.pop(number, None)
        of_set = {key: waiting.asked for key, waiting in self._waiting.items()} | self._complete
        for key in [key for key in of_set if key[0] == number]:
            self._waiting.pop(key, None)
            self._complete.pop(key, None)
            self._refuse(key, of_set[key], f"process set {number} is removed")

    def _fused(self, singles: Sequence[Response]) -> list[Response]:
        """Join allreduces that differ in name and shape alone, up to `fusion_bytes`; the order is that of the first."""
        fused: list[list[Request]] = []
        kinds: list[Response] = []
        open_at: dict[object, tuple[int, int]] = {}
        for single in singles:
            (request,) = single.requests
            fusible = request.verb == ALLREDUCE and request.op != ADASUM  # which depends on a tensor's length
            kind = (request._replace(name="", shape=()), single.absent) if fusible else None
            place, held = open_at.get(kind, (-1, 0))
            size = nbytes(request)
            if kind is not None and place >= 0 and (request.group[0] or held + size <= self._fusion_bytes):
                fused[place].append(request)
                open_at[kind] = place, held + size
                continue
            open_at[kind] = len(fused), size
            fused.append([request])
            kinds.append(single)
        return [single._replace(requests=tuple(each)) for single, each in zip(kinds, fused, strict=True)]


def _first(asked: Mapping[int, Request]) -> Request:
    return next(iter(asked.values()))


def nbytes(request: Request) -> int:
    """Return the bytes of its tensor."""
    return math.prod(request.shape) * getattr(torch, request.dtype).itemsize if request.dtype else 0


def _kind(request: Request) -> Request:
    """Return what must be the same on all ranks."""
    shape = request.shape[1:] if request.verb in ROWS_DIFFER else request.shape
    return request._replace(shape=shape, splits=())


def _listed(ranks: Mapping[int, Request]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
