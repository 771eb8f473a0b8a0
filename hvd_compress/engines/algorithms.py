"""The collectives themselves, each written once over point-to-point messages.

`Link.send` never blocks and copies what it is given; `Link.recv` blocks. N is the number of ranks, M the bytes of one
rank's tensor. Every allreduce leaves bit-identical sums on all ranks: each element is either summed in one place and
copied, or summed pairwise by both partners, and a + b = b + a in floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from hvd_compress.engines import layout
from hvd_compress.engines.names import SEGMENT_BYTES


class Link(Protocol):
    """One rank's connections to all others."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def send(self, destination: int, tensor: torch.Tensor) -> None: ...

    def recv(self, source: int) -> torch.Tensor: ...


def ring(link: Link, x: torch.Tensor) -> None:
    """Sum `x` in place: reduce-scatter around the ring, then allgather. 2(N-1) rounds of M/N bytes."""
    n, rank = link.world_size, link.rank
    shards = ring_reduce_scatter(link, x)
    for step in range(n - 1):
        link.send((rank + 1) % n, shards[(rank - step) % n])
        shards[(rank - step - 1) % n].copy_(link.recv((rank - 1) % n))


def ring_reduce_scatter(link: Link, x: torch.Tensor) -> list[torch.Tensor]:
    """Sum in place, so that shard r of `x` is complete on rank r; the rest of `x` holds partial sums.

    Returns the shards of `x`, as views. N-1 rounds of M/N bytes.
    """
    n, rank = link.world_size, link.rank
    shards = [x[layout.shard(x.numel(), n, r)] for r in range(n)]
    for step in range(n - 1):
        link.send((rank + 1) % n, shards[(rank - step - 1) % n])
        shards[(rank - step - 2) % n].add_(link.recv((rank - 1) % n))
    return shards


def tree(link: Link, x: torch.Tensor) -> None:
    """Sum `x` in place: binomial reduce to rank 0, binomial broadcast from it. 2 ceil(log2 N) rounds of M bytes."""
    binomial_reduce(link, x)
    binomial_broadcast(link, x, root=0)


def binomial_reduce(link: Link, x: torch.Tensor) -> None:
    """Sum onto rank 0, in place; on other ranks `x` holds a partial sum. ceil(log2 N) rounds, N-1 messages of M."""
    bit = 1
    while bit < link.world_size:
        if link.rank & bit:
            link.send(link.rank - bit, x)
            return
        if link.rank + bit < link.world_size:
            x.add_(link.recv(link.rank + bit))
        bit *= 2


def binomial_broadcast(link: Link, x: torch.Tensor, root: int) -> None:
    """Replace `x` by that of `root`. ceil(log2 N) rounds, N-1 messages of M bytes."""
    n = link.world_size
    place = (link.rank - root) % n
    bit = 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        x.copy_(link.recv((place - bit + root) % n))
    while bit > 1:
        bit //= 2
        if place + bit < n:
            link.send((place + bit + root) % n, x)


def pipelined_broadcast(link: Link, x: torch.Tensor, root: int, segment_bytes: int) -> None:
    """Replace `x` by that of `root`, in segments along the chain root, root + 1, ... Each rank but the last sends M.

    With s segments the last rank has all of them after s + N - 2 rounds.
    """
    n = link.world_size
    place = (link.rank - root) % n
    for segment in torch.split(x, max(1, segment_bytes // x.element_size())) if x.numel() else ():
        if place:
            segment.copy_(link.recv((link.rank - 1) % n))
        if place < n - 1:
            link.send((link.rank + 1) % n, segment)


def scatter_allgather_broadcast(link: Link, x: torch.Tensor, root: int) -> None:
    """Replace `x` by that of `root`: binomial scatter of N shards, then Bruck's allgather. 2 ceil(log2 N) rounds.

    The root sends (N-1)/N M in the first half, and so does every rank in the second. Inner ranks of the tree pass on
    the shards of those behind them.
    """
    n = link.world_size
    place = (link.rank - root) % n
    shards = [x[layout.shard(x.numel(), n, p)] for p in range(n)]
    bit = 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        for mine in shards[place : place + bit]:
            mine.copy_(link.recv((place - bit + root) % n))
    while bit > 1:
        bit //= 2
        for theirs in shards[place + bit : place + 2 * bit]:
            link.send((place + bit + root) % n, theirs)
    for rank, block in enumerate(bruck_allgather(link, shards[place])):
        shards[(rank - root) % n].copy_(block)


def recursive_doubling(link: Link, x: torch.Tensor) -> None:
    """Sum `x` in place: swap all of it with partners at distance 1, 2, 4, ... log2 N rounds of M bytes.

    For other N than powers of two see `_folded`.
    """
    _folded(link, x, _double)


def rabenseifner(link: Link, x: torch.Tensor) -> None:
    """Sum `x` in place: recursive halving, then doubling. 2 log2 N rounds; each rank sends 2(N-1)/N M bytes.

    For other N than powers of two see `_folded`.
    """
    _folded(link, x, lambda link, x, core: _halve(link, x, core // 2))


def _double(link: Link, x: torch.Tensor, core: int) -> None:
    bit = 1
    while bit < core:
        link.send(link.rank ^ bit, x)
        x.add_(link.recv(link.rank ^ bit))
        bit *= 2


def _halve(link: Link, x: torch.Tensor, bit: int) -> None:
    """Sum one half of `x` here and have the partner at distance `bit` sum the other, then swap the finished halves."""
    if bit == 0:
        return
    middle, partner = x.numel() // 2, link.rank ^ bit
    mine, theirs = (x[middle:], x[:middle]) if link.rank & bit else (x[:middle], x[middle:])
    link.send(partner, theirs)
    mine.add_(link.recv(partner))
    _halve(link, mine, bit // 2)
    link.send(partner, mine)
    theirs.copy_(link.recv(partner))


def _folded(link: Link, x: torch.Tensor, core_sum: Callable[[Link, torch.Tensor, int], None]) -> None:
    """Let p ranks, p the largest power of two, run `core_sum`; each rank beyond p hands its part to one of them first.

    Costs one round of M bytes before and one after, on the N-p pairs only.
    """
    core = layout.largest_power_of_two(link.world_size)
    if link.rank >= core:
        link.send(link.rank - core, x)
        x.copy_(link.recv(link.rank - core))
        return
    guest = link.rank + core
    if guest < link.world_size:
        x.add_(link.recv(guest))
    core_sum(link, x, core)
    if guest < link.world_size:
        link.send(guest, x)


def ring_allgather(link: Link, x: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's tensor, of any lengths, in rank order. N-1 rounds; each passes on what came last."""
    n, rank = link.world_size, link.rank
    blocks = [x] * n
    for step in range(n - 1):
        link.send((rank + 1) % n, blocks[(rank - step) % n])
        blocks[(rank - step - 1) % n] = link.recv((rank - 1) % n)
    return blocks


def bruck_allgather(link: Link, x: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's tensor, of any lengths, in rank order. ceil(log2 N) rounds; what one sends doubles.

    Blocks travel one by one here; a library packs those of a round into one message.
    """
    n, rank = link.world_size, link.rank
    blocks = [x]  # of ranks rank, rank + 1, ...
    while (have := len(blocks)) < n:
        count = min(have, n - have)
        for block in blocks[:count]:
            link.send((rank - have) % n, block)
        blocks += [link.recv((rank + have) % n) for _ in range(count)]
    return [blocks[(source - rank) % n] for source in range(n)]


def pairwise_alltoall(link: Link, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Send `parts[r]` to rank r and return what came from each, in rank order. N-1 rounds, each with other partners."""
    n, rank = link.world_size, link.rank
    received = list(parts)
    received[rank] = parts[rank].clone()
    for distance in range(1, n):
        link.send((rank + distance) % n, parts[(rank + distance) % n])
        received[(rank - distance) % n] = link.recv((rank - distance) % n)
    return received


def flat_gather(link: Link, x: torch.Tensor, root: int) -> list[torch.Tensor] | None:
    """Return every rank's tensor on `root`, None elsewhere. One round: all send M bytes straight to the root."""
    if link.rank != root:
        link.send(root, x)
        return None
    return [x if source == root else link.recv(source) for source in range(link.world_size)]


ALLREDUCE: dict[str, Callable[[Link, torch.Tensor], None]] = {
    "auto": ring,
    "ring": ring,
    "tree": tree,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
}

BROADCAST: dict[str, Callable[[Link, torch.Tensor, int], None]] = {
    "auto": binomial_broadcast,
    "binomial": binomial_broadcast,
    "scatter_allgather": scatter_allgather_broadcast,
    **{name: partial(pipelined_broadcast, segment_bytes=size) for name, size in SEGMENT_BYTES.items()},
}

ALLGATHER: dict[str, Callable[[Link, torch.Tensor], list[torch.Tensor]]] = {
    "auto": ring_allgather,
    "ring": ring_allgather,
    "bruck": bruck_allgather,
}
