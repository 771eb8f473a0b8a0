"""Process groups of torch.distributed that belong to engines alone, from a pool for the same ranks and backend.

Over gloo each has links of our own, too.
"""

from __future__ import annotations

import json
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hvd_compress.engines.base import Engine
from hvd_compress.engines.dialing import Endpoint, Listener, connect
from hvd_compress.engines.pool import Offer, Pool
from hvd_compress.engines.system_limits import files_obstacle, naming_limits
from hvd_compress.errors import CommunicationError
from hvd_compress.native.links import Links

LATER_S = 10.0
"""By how much a group's own limit is later than that of who waits for a step, and says which rank has not arrived: the
group, whose limit begins with a collective, within the backward pass, does not know."""
_FILES = 5
"""Of a group of gloo: a socket that listens, two ends of a pipe and an epoll; and once a socket that listens of ours.
Besides two sockets for each other rank, gloo's and ours."""


@dataclass(frozen=True)
class _Known:
    """A group of ours, which torch holds until the program ends all of them, and for what engines it is made."""

    group: weakref.ref[dist.ProcessGroup]
    links: Links | None
    timeout_s: float | None
    device: torch.device


class _Groups:
    """Those of the same ranks and backend."""

    def __init__(self, ranks: Sequence[int], backend: str) -> None:
        self.pool: Pool[_Known] = Pool()
        self._ranks = ranks
        self._prefix = f"hvd_compress/groups/{backend}{zlib.crc32(repr(ranks).encode())}"
        self._last_key: str | None = None
        self._endpoints: list[Any] = []

    def meet(self, timeout: timedelta, offer: Offer) -> list[Offer]:
        """Return what all ranks have said, over the job's store. Collective.

        From now on torch counts groups alike on all of them: some may have made groups without the others.
        """
        store, own = dist.distributed_c10d._get_default_store(), dist.get_rank()
        # Counted in the store, as that may be older than these pools.
        turn = (store.add(self._prefix, 1) - 1) // len(self._ranks)
        keys = {rank: f"{self._prefix}/{turn}/{rank}" for rank in self._ranks}
        endpoint = _listener().endpoint.told()
        store.set(keys[own], json.dumps([offer, dist.distributed_c10d._world.group_count, endpoint]))
        try:
            store.wait(list(keys.values()), timeout)
        except RuntimeError as error:
            store.delete_key(keys[own])
            store.add(self._prefix, -1)
            raise _not_come(self._ranks, error) from error
        said = [json.loads(store.get(key)) for key in keys.values()]
        dist.distributed_c10d._world.group_count = max(count for _, count, _ in said)
        self._endpoints = [endpoint for _, _, endpoint in said]
        if self._last_key is not None:
            store.delete_key(self._last_key)  # all have read it, since all are here
        self._last_key = keys[own]
        return [each for each, _, _ in said]

    def connect(self, name: str, timeout_s: float) -> Links:
        """Return links between the ranks that have met last. Collective; `name` is another one for each."""
        endpoints = dict(zip(self._ranks, map(Endpoint.of, self._endpoints), strict=True))
        return connect(dist.get_rank(), endpoints, _listener(), self._ranks, f"{self._prefix}/{name}", timeout_s)


_of_job: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[tuple[int, ...], str], _Groups]]
_of_job = weakref.WeakKeyDictionary()
"""By the group of all ranks: init_process_group() makes another one, and with it new pools."""
_listeners: weakref.WeakKeyDictionary[dist.ProcessGroup, Listener] = weakref.WeakKeyDictionary()
"""The same."""


def _listener() -> Listener:
    """Return where this rank listens in the job that torch.distributed is in."""
    world = dist.group.WORLD
    assert world is not None
    if world not in _listeners:
        _listeners[world] = Listener()
        weakref.finalize(world, _listeners[world].close)
    return _listeners[world]


def borrow(
    engine: Engine, backend: str, timeout_s: float | None, device: torch.device, thorough: bool
) -> tuple[dist.ProcessGroup, Links | None]:
    """Return a group of the engine's ranks for it alone, until it is closed or dropped. Collective over them.

    With it come, over gloo, links between its ranks, which are the engine's as long.

    Ranks meet over the job's store, so that no collective of the program is met by one of ours. torch counts groups in
    the names of later ones, so one that is lent again counts, too: other ranks may have made one meanwhile. Releases
    that count those of this rank alone are lent nothing of a part of the job.

    Args:
        timeout_s: how long a collective may take, and LATER_S more, by default torch's own limit.
        thorough: as `Pool.lend`.

    Raises:
        CommunicationError: not all ranks have come in time, or the system lets this one make no group.
        ConfigError: some rank may not open as many files as a new group needs.
    """
    ranks, world = tuple(engine.ranks), dist.group.WORLD
    assert world is not None
    seconds = None if timeout_s is None else timedelta(seconds=timeout_s + LATER_S)
    timeout: timedelta = seconds or dist.distributed_c10d._get_default_timeout(backend)
    if backend == "mpi":  # it has no store
        return _new_group(ranks, timeout, backend), None
    groups = _of_job.setdefault(world, {}).setdefault((ranks, backend), _Groups(ranks, backend))
    made: list[dist.ProcessGroup] = []

    def make() -> _Known:
        made.append(_new_group(ranks, timeout, backend))
        number = str(groups.pool.made)
        links = groups.connect(number, timeout.total_seconds()) if backend == "gloo" and len(ranks) > 1 else None
        return _Known(weakref.ref(made[0]), links, timeout_s, device)

    def fits(known: _Known) -> bool:
        is_whole = len(ranks) == dist.get_world_size()
        as_asked = (known.timeout_s, known.device) == (timeout_s, device)
        return known.group() is not None and as_asked and (is_whole or _counts_on_all_ranks())

    def obstacle() -> str:
        words = files_obstacle(_FILES + 2 * (len(ranks) - 1), f"a process group of {len(ranks)} ranks")
        return words and f"rank {dist.get_rank()}: {words}"

    known = groups.pool.lend(engine, partial(groups.meet, timeout), make, fits, obstacle, thorough)
    if not made and _counts_on_all_ranks():
        dist.distributed_c10d._world.group_count += 1
    group = known.group()
    assert group is not None
    return group, known.links


def _counts_on_all_ranks() -> bool:
    """Whether torch tells groups of the same ranks apart by a count that rises on ranks that are in none of them."""
    torch_s = dist.distributed_c10d
    name_of = torch_s._hash_ranks_to_str
    before = name_of([0])
    torch_s._world.group_count += 1
    after = name_of([0])
    torch_s._world.group_count -= 1
    return bool(before != after)


def _new_group(ranks: Sequence[int], timeout: timedelta, backend: str) -> dist.ProcessGroup:
    try:
        with naming_limits(f"a process group of {len(ranks)} ranks"):
            group = dist.new_group(list(ranks), timeout, backend, use_local_synchronization=backend != "mpi")
    except CommunicationError:
        raise
    except RuntimeError as error:
        raise _not_come(ranks, error) from error
    assert isinstance(group, dist.ProcessGroup)  # this rank is in it
    return group


def _not_come(ranks: Sequence[int], error: Exception) -> CommunicationError:
    return CommunicationError(
        f"ranks {list(ranks)} have not all come to make a process group: compress the model on every rank, with the "
        f"same settings; a rank may have ended, too ({error})"
    )
