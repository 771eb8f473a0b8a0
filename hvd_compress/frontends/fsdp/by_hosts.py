"""An all-gather over gloo in which each message crosses the line between two hosts once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.engines.hosts import host_identity
from hvd_compress.frontends.fsdp.messages import Messages


class HostGather:
    """Gathers messages of one length over the ranks of a group, on the CPU.

    1. Each rank sends its message to those ranks of other hosts that have its place in their host.
    2. The ranks of a host exchange what they have received.

    Gloo's own all-gather is a ring: with N ranks it takes N - 1 latencies one after another, and of N messages N - 1
    cross each host's line in each direction. Here it is one latency, and as many messages as other hosts have ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Learn which ranks share a host. Collective."""
        self._group, self._ranks, self._own = group, dist.get_process_group_ranks(group), group.rank()
        self._tag = 0
        own = torch.tensor([zlib.crc32(host_identity().encode())])
        found = torch.empty(len(self._ranks), dtype=own.dtype)
        dist.all_gather_into_tensor(found, own, group)
        self._across, self._within = peers(found.tolist(), self._own)

    def start(self, message: torch.Tensor) -> Messages:
        """Begin to gather messages, this rank's being (nbytes,) uint8."""
        messages = message.new_empty(len(self._ranks), message.numel())
        messages[self._own] = message
        self._tag += 1
        works = self._exchange({rank: (message, messages[rank]) for rank in self._across})

        def wait() -> torch.Tensor:
            _wait(works)
            self._share(messages)
            return messages

        return wait

    def _share(self, messages: torch.Tensor) -> None:
        """Give the ranks of this host what this one has, and take what they have."""
        if not self._within:
            return
        mine = sorted([self._own, *self._across])
        sent = messages[mine]
        theirs = {rank: torch.empty_like(sent) for rank in self._within}
        _wait(self._exchange({rank: (sent, into) for rank, into in theirs.items()}))
        for rank, into in theirs.items():
            messages[[each + rank - self._own for each in mine]] = into

    def _exchange(self, parts: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
        works = [dist.irecv(into, self._ranks[rank], self._group, self._tag) for rank, (_, into) in parts.items()]
        return works + [dist.isend(own, self._ranks[rank], self._group, self._tag) for rank, (own, _) in parts.items()]


def peers(hosts: Sequence[int], own: int) -> tuple[list[int], list[int]]:
    """Return the ranks that one exchanges messages with, and then those with which it shares what it has.

    Where hosts have equally many ranks, one after another, those of other hosts at the same place, and those of this
    host; else all others, and none.

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


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()
