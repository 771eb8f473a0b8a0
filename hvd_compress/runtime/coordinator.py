"""Which tensors are moved next, in which order: one answer for all ranks, found where all their requests meet."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    REMOVE_SET,
    Request,
    Response,
)

ROWS_DIFFER = (ALLGATHER, ALLTOALL)
"""Verbs whose tensors may have another first dimension on each rank."""
ALLOW_JOINED = (ALLREDUCE, BARRIER)
"""Verbs in which those that have joined take part with zeros."""

_SLOW = "; where one is only slow, as while it evaluates alone, raise HVD_COMPRESS_TIMEOUT_S on all ranks"
_Key = tuple[int, str]


@dataclass
class _Waiting:
    """A tensor for which ranks have asked: `requests` by rank, the first at `since`."""

    since: float
    requests: dict[int, Request] = field(default_factory=dict)
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
        self._complete: dict[_Key, _Waiting] = {}  # for their group
        self._rejections: list[Response] = []
        self._joined: dict[int, None] = {}  # in their order
        self._gone: dict[int, str] = {}
        self._late: dict[tuple[int, _Key], str] = {}
        self._asked_at = 0.0  # when a rank has last asked for something, or joined

    def submit(self, rank: int, request: Request, now: float) -> None:
        """Rank `rank` asks for something. Once for each name until that is answered."""
        key = request.process_set_id, request.name
        self._asked_at = now
        if (late := self._late.pop((rank, key), None)) is not None:
            self._reject(key, {rank: request}, late, missing=True)
            return
        self._waiting.setdefault(key, _Waiting(now)).requests[rank] = request
        self._check(key)

    def join(self, rank: int, now: float) -> None:
        """Rank `rank` has no more to ask for: it takes part with zeros until all have joined."""
        self._asked_at = now
        self._joined[rank] = None
        for key in [key for key in self._late if key[0] == rank]:  # it will not come for what others gave up
            del self._late[key]
        self._check_all()

    def leave(self, rank: int, why: str) -> None:
        """Rank `rank` will never ask again: "has shut down", "is gone"."""
        self._gone.setdefault(rank, why)
        self._joined.pop(rank, None)
        for key, complete in list(self._complete.items()):
            if rank in self._sets[key[0]]:
                del self._complete[key]
                self._reject(key, complete.requests, f"rank {rank} {why}", missing=True)
        self._check_all()

    def first_gone(self) -> str:
        """Say who was the first to leave, and how; "" before any has."""
        return next((f"rank {rank} {why}" for rank, why in self._gone.items()), "")

    def take(self, errors_alone: bool = False) -> list[Response]:
        """Return what is to be done now, in order, fused; or only what was refused."""
        if errors_alone:
            answers, self._rejections = self._rejections, []
            return answers
        singles: list[Response] = []
        for keys in self._groups():
            if keys[0] not in self._complete:  # its process set was removed just now
                continue
            if not self._is_whole(keys):
                continue  # its other tensors are waited for
            group = {key: self._complete.pop(key).requests for key in keys}
            problem = next(
                filter(None, (self._mismatch(self._sets[key[0]], requests) for key, requests in group.items())), ""
            )
            for key, requests in group.items():
                if problem:
                    own = self._mismatch(self._sets[key[0]], requests)
                    self._reject(key, requests, own or f"another tensor of its group does not fit: {problem}")
                else:
                    singles.append(self._respond(key, requests))
        answers, self._rejections = [*self._rejections, *self._fuse(singles)], []
        if self._joined and len(self._joined) == len(self._sets[0]):
            answers.append(Response((Request(JOIN, JOIN),), last=list(self._joined)[-1]))
            self._joined.clear()
        return answers

    def _groups(self) -> list[list[_Key]]:
        """Return tensors for which all ranks have asked: those of a group together, each other one alone."""
        groups: dict[_Key, list[_Key]] = {}
        for key, complete in self._complete.items():
            groups.setdefault((key[0], _first(complete.requests).group[0] or f"tensor {key[1]}"), []).append(key)
        return list(groups.values())

    def _is_whole(self, keys: Sequence[_Key]) -> bool:
        return len(keys) >= min(each.group[1] for each in self._complete[keys[0]].requests.values())

    def overdue(self, now: float, after_s: float) -> Iterator[tuple[Request, list[int], float]]:
        """Yield, once each, what has waited so long: the request, the ranks that are missing, and the seconds."""
        for (process_set_id, _), waiting in self._waiting.items():
            if not waiting.warned and now - waiting.since > after_s:
                waiting.warned = True
                yield _first(waiting.requests), self._missing(process_set_id, waiting), now - waiting.since

    def expire(self, now: float, after_s: float) -> None:
        """Answer what has waited so long by an error that names who is missing; they get it when they come.

        What has waited half as long for the same ranks fails with it: it is of the same step, which is lost.
        """
        missing = {key: self._missing(key[0], waiting) for key, waiting in self._waiting.items()}
        late = {rank for key, ranks in missing.items() if now - self._waiting[key].since > after_s for rank in ranks}
        for key, ranks in missing.items():
            if ranks and late.issuperset(ranks) and now - self._waiting[key].since > after_s / 2:
                words = f"{_ranks(ranks)} did not submit it within {after_s:g} s"
                requests = self._waiting.pop(key).requests
                self._reject(key, requests, f"{words}, as {_ranks(requests)} did{_SLOW}", missing=True, silent=True)
                self._late.update({(rank, key): f"other ranks gave it up: {words}" for rank in ranks})
        if self._joined and not self._waiting and not self._complete and now - self._asked_at > after_s:
            others = [rank for rank in self._sets[0] if rank not in self._joined]
            why = f"{JOIN}: {_ranks(others)} did neither join nor submit anything within {after_s:g} s{_SLOW}"
            joined, self._joined = tuple(self._joined), {}
            self._rejections.append(Response((Request(JOIN, JOIN),), why, joined, missing=True, silent=True))
        for keys in self._groups():
            if self._is_whole(keys):
                continue
            for key in [key for key in keys if now - self._complete[key].since > after_s]:
                why = f"other tensors of its group did not come within {after_s:g} s"
                self._reject(key, self._complete.pop(key).requests, why, missing=True)

    def _missing(self, process_set_id: int, waiting: _Waiting) -> list[int]:
        return [
            rank for rank in self._sets[process_set_id] if rank not in waiting.requests and rank not in self._joined
        ]

    def _check_all(self) -> None:
        gone = next((rank for rank in self._gone if rank not in self._joined), None)
        if self._joined and gone is not None:
            why = f"{JOIN}: rank {gone} {self._gone[gone]}"
            self._rejections.append(Response((Request(JOIN, JOIN),), why, tuple(self._joined), missing=True))
            self._joined.clear()
        for key in list(self._waiting):
            self._check(key)

    def _check(self, key: _Key) -> None:
        requests, ranks = self._waiting[key].requests, self._sets.get(key[0])
        outside = [rank for rank in requests if rank not in (ranks or ())]
        gone = [rank for rank in self._gone if rank in (ranks or ())]  # the first one perhaps the cause of others
        why = ""
        if ranks is None or outside:
            why = f"process set {key[0]} has no rank {outside[0]}" if ranks else f"there is no process set {key[0]}"
        elif gone:
            why = f"rank {gone[0]} {self._gone[gone[0]]}"
        elif self._missing(key[0], self._waiting[key]):
            return
        since = self._waiting.pop(key).since
        if why or ranks is None:
            self._reject(key, requests, why, missing=bool(gone))
        else:
            self._complete[key] = _Waiting(since, {rank: requests[rank] for rank in ranks if rank in requests})

    def _reject(
        self, key: _Key, requests: Mapping[int, Request], why: str, *, missing: bool = False, silent: bool = False
    ) -> None:
        first = _first(requests)
        words = f"{first.verb} of {key[1]!r}: {why}"
        self._rejections.append(Response((first,), words, tuple(sorted(requests)), missing=missing, silent=silent))

    def _mismatch(self, ranks: Sequence[int], requests: Mapping[int, Request]) -> str:
        """Say what does not fit: both sides of it."""
        first, *others = sorted(requests)
        for rank in others:
            if _kind(requests[rank]) != _kind(requests[first]):
                return f"rank {first} wants {requests[first].describe()}, and rank {rank} {requests[rank].describe()}"
        request = requests[first]
        absent = [rank for rank in ranks if rank not in requests]
        if absent and request.op in (MIN, MAX, PRODUCT):
            return f"rank {absent[0]} has joined, and its zeros would change a {request.op}"
        if absent and request.verb not in ALLOW_JOINED:
            return f"rank {absent[0]} has joined, and takes part in allreduces and barriers alone"
        if request.verb in (*ROWS_DIFFER, REDUCESCATTER) and not all(each.shape for each in requests.values()):
            return "a tensor without dimensions has no rows: pass tensor.reshape(1)"
        if request.root >= 0 and request.root not in ranks:
            return f"its root, rank {request.root}, is not in the process set of ranks {list(ranks)}"
        for rank, each in requests.items():
            if each.verb == ALLTOALL and (
                len(each.splits) != len(ranks) or min(each.splits) < 0 or sum(each.splits) != each.shape[0]
            ):
                return (
                    f"rank {rank} has splits {list(each.splits)}, which must be a number of rows for each of "
                    f"{len(ranks)} ranks, {each.shape[0]} in all"
                )
        return ""

    def _respond(self, key: _Key, requests: Mapping[int, Request]) -> Response:
        ranks = self._sets[key[0]]
        first = _first(requests)
        sizes: tuple[object, ...] = ()
        if first.verb == ALLGATHER:
            sizes = tuple(each.shape[0] for each in requests.values())
        elif first.verb == ALLTOALL:
            sizes = tuple(each.splits for each in requests.values())
        number = -1
        if first.verb == ADD_SET:
            number = self._next_set
            self._next_set += 1
            self._sets[number] = first.shape
        elif first.verb == REMOVE_SET:
            self._remove_set(first.shape[0])
        return Response(
            (first,), sizes=sizes, last=number, absent=tuple(rank for rank in ranks if rank not in requests)
        )

    def _remove_set(self, number: int) -> None:
        self._sets.pop(number, None)
        of_set = {key: each.requests for key, each in (self._waiting | self._complete).items()}
        for key in [key for key in of_set if key[0] == number]:
            self._waiting.pop(key, None)
            self._complete.pop(key, None)
            self._reject(key, of_set[key], f"process set {number} is removed")

    def _fuse(self, singles: Sequence[Response]) -> list[Response]:
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


def _first(requests: Mapping[int, Request]) -> Request:
    return next(iter(requests.values()))


def nbytes(request: Request) -> int:
    """Return the bytes of its tensor."""
    return math.prod(request.shape) * getattr(torch, request.dtype).itemsize if request.dtype else 0


def _kind(request: Request) -> Request:
    """Return what must be the same on all ranks."""
    shape = request.shape[1:] if request.verb in ROWS_DIFFER else request.shape
    return request._replace(shape=shape, splits=())


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
