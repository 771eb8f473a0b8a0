"""An all-gather over gloo in which each message crosses the line between two hosts once."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.engines.hosts import host_identity
from hvd_compress.errors import CommunicationError
from hvd_compress.frontends.fsdp.messages import Messages

_TAGS = 1 << 30
_Key = tuple[tuple[int, ...], float]
_of_job: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[_Key, HostGather]] = weakref.WeakKeyDictionary()
"""By the group of all ranks, the ranks that gather and their limit: models that come and go share one connection."""


def host_gather(group: dist.ProcessGroup, timeout_s: float) -> HostGather:
    """Return what gathers over the ranks of a group. Collective where it is new.

    Args:
        timeout_s: how long ranks may let each other wait; the same on all.
    """
    of_job = _of_job.setdefault(dist.distributed_c10d._get_default_group(), {})
    key = tuple(dist.get_process_group_ranks(group)), timeout_s
    if key not in of_job:
        of_job[key] = HostGather(group, timeout_s)
    return of_job[key]


class HostGather:
    """Gathers messages of one length over the ranks of a group, on the CPU.

    1. Each rank sends its message to those ranks of other hosts that have its place in their host.
    2. The ranks of a host exchange what they have received.

    Gloo's own all-gather is a ring: with N ranks it takes N - 1 latencies one after another, and of N messages N - 1
    cross each host's line in each direction. Here it is one latency, and as many messages as other hosts have ranks.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        """Learn which ranks share a host. Collective."""
        self._ranks, self._own = dist.get_process_group_ranks(group), group.rank()
        # Apart from messages of the program, which may have any tag.
        limit = timedelta(seconds=timeout_s)
        self._group: Any = dist.new_group(self._ranks, limit, "gloo", use_local_synchronization=True)
        self._tag = 0
        own = torch.tensor([zlib.crc32(host_identity().encode())])
        found = torch.empty(len(self._ranks), dtype=own.dtype)
        dist.all_gather_into_tensor(found, own, group)
        self._across, self._within = peers(found.tolist(), self._own)

    def start(self, message: torch.Tensor) -> Messages:
        """Begin to gather messages, this rank's being (nbytes,) uint8."""
        messages = message.new_empty(len(self._ranks), message.numel())
        messages[self._own] = message
        self._tag = (self._tag + 1) % _TAGS
        tag = self._tag  # another gather may begin before this one ends, and on other ranks after it
        started = self._exchange({rank: (message, messages[rank]) for rank in self._across}, tag)

        def wait() -> torch.Tensor:
            self._wait(started)
            self._share(messages, tag)
            return messages

        return wait

    def _share(self, messages: torch.Tensor, tag: int) -> None:
        """Give the ranks of this host what this one has, and take what they have."""
        if not self._within:
            return
        mine = sorted([self._own, *self._across])
        sent = messages[mine]
        theirs = {rank: torch.empty_like(sent) for rank in self._within}
        self._wait(self._exchange({rank: (sent, into) for rank, into in theirs.items()}, tag))
        for rank, into in theirs.items():
            messages[[each + rank - self._own for each in mine]] = into

    def _exchange(self, parts: dict[int, tuple[torch.Tensor, torch.Tensor]], tag: int) -> list[tuple[int, Any]]:
        """Send each rank the first of two tensors, and receive the second. Return what to wait for, with the rank."""
        numbers = {rank: self._ranks[rank] for rank in parts}
        received = [(n, dist.irecv(parts[rank][1], n, self._group, tag)) for rank, n in numbers.items()]
        return received + [(n, dist.isend(parts[rank][0], n, self._group, tag)) for rank, n in numbers.items()]

    def _wait(self, works: Sequence[tuple[int, Any]]) -> None:
        for rank, work in works:
            try:
                work.wait()
            except RuntimeError as error:
                raise CommunicationError(
                    f"gathering parameters with rank {rank} failed: {error}. That rank may have ended; see its output"
                ) from error


def peers(hosts: Sequence[int], own: int) -> tuple[list[int], list[int]]:
    """Return the ranks that one exchanges messages with, and then those that it shares what it has with.

    Where hosts have equally many ranks, numbered host by host, the first are those at the same place of other hosts,
    and the second those of its own host. Elsewhere it exchanges messages with all, and shares nothing.

    Args:
        hosts: by rank, a number that is the same on one host alone.
    """
    numbers = list(dict.fromkeys(hosts))
    size, left = divmod(len(hosts), len(numbers))
    if left or list(hosts) != [number for number in numbers for _ in range(size)]:
        return [rank for rank in range(len(hosts)) if rank != own], []
    first = own - own % size
    across = [rank for rank in range(own % size, len(hosts), size) if rank != own]
    return across, [rank for rank in range(first, first + size) if rank != own]
