"""HiTopKComm: sum shards within a host, exchange the top-k of each across hosts, gather the results within."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.allgather import AllGather
from hvd_compress.collectives.base import Collective, Exchange, Work, add_residual
from hvd_compress.collectives.groups import neighbours, no_groups, sizes, within_host
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.compressors.sparsifier import FixedRatio
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard, shard_lengths
from hvd_compress.papers.espresso.groups import same_place

NEEDED = {"reduce_scatter", "allgather"}


@dataclass(frozen=True)
class HiTopK(Collective):
    """HiTopKComm (Shi et al. 2021, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters").

    With L ranks on each host, the i-th rank of a host owns the i-th shard of the bucket:

    1. Reduce-scatter within the host, dense and in fp32: each rank has the sum of its shard over the host.
    2. It selects in sum + residual, and all-gathers indices and values with the i-th ranks of the other hosts.
    3. All-gather of the shards within the host, dense, in the gradient's dtype.

    A rank remembers what its shard has not sent; residuals of other shards, of earlier decisions, are sent along in the
    first call. Selecting by parameter selects in the part of it that lies in a shard.

    Bytes sent by a rank, with n elements, M bytes of gradient, H hosts and k = ratio * n: (L-1)/L (4n + M) within its
    host, (H-1) 8k/L across.
    """

    compressor: Compressor
    path: Path = Path("hitopk")
    names = ("hitopk",)
    in_groups = True
    by_name = True

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return isinstance(compressor, FixedRatio)

    @classmethod
    def obstacle(cls, can: Capabilities) -> str:
        ranks = sizes(can.hosts)
        if len(set(ranks)) > 1:
            found = ", ".join(map(str, ranks))
            return (
                f"it takes as many ranks on each host, and the hosts of this job have {found}: say "
                ".by(collective='hierarchical'), or launch as many on each"
            )
        return no_groups(can)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        runs = cls.carries(compressor) and not cls.obstacle(can) and set(can.verbs) >= NEEDED
        return (Path("hitopk"),) if runs else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Return those of ranks with a host of their own each."""
        return self.stages_on(layout, range(world_size))

    def stages_on(self, layout: Layout, hosts: Sequence[int]) -> tuple[Stage, ...]:
        """Return those of the first shard."""
        ranks = sizes(hosts)
        most, count = max(ranks), len(ranks)
        (sent,) = self.compressor.wire(layout.part(shard(layout.numel, most, 0)))
        across = Stage("allgather", "auto", sent.nbytes, count)
        if most == 1:
            return (across,)
        summed = Stage("reduce_scatter", "auto", 4 * layout.numel, most)
        return (summed, across, Stage("allgather", "auto", layout.nbytes / most, most))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert len(work.hosts) == world_size, "nobody has located the engine"
        return _HiTopKExchange(self, work, rank)


class _HiTopKExchange(Exchange):
    def __init__(self, collective: HiTopK, work: Work, rank: int) -> None:
        self._work = work
        local = neighbours(work.hosts, rank)
        self._shard = shard(work.gradient.numel(), len(local), local.index(rank))
        self._lengths = shard_lengths(work.gradient.numel(), len(local))
        self._collective = AllGather(collective.compressor)
        self._values: torch.Tensor
        self._sent: torch.Tensor
        self._shards: list[torch.Tensor] = []

    def encode(self) -> None:
        work, own = self._work, self._shard
        self._values = work.gradient.float()  # itself where it is fp32
        for others in (slice(0, own.start), slice(own.stop, None)):
            add_residual(work, self._values, others)
        self._sent = work.lane.post("bucket", self._values)

    def communicate(self, engine: Engine) -> None:
        work, lane = self._work, self._work.lane
        host, across = within_host(engine), same_place(engine)
        summed = host.reduce_scatter(self._sent)
        with lane.between_collectives():
            self._own = lane.fetch(summed)
        if self._own.numel():  # as on the other hosts
            self._exchange(across)
        with lane.between_collectives():
            self._rounded = self._own.to(work.gradient.dtype)
            sent = lane.post("shard", self._rounded)
            inbox = lane.inbox("shards", sum(self._lengths), sent.dtype)
        self._shards = host.allgather(sent, self._lengths, out=inbox)

    def _exchange(self, across: Engine) -> None:
        """With the ranks that own the same shard."""
        work, lane = self._work, self._work.lane
        inner = replace(
            work.of_part(self._shard),
            gradient=self._own,
            layout=work.layout.part(self._shard),
            rank=across.rank,
            world_size=across.world_size,
        )
        exchange = self._collective.exchange(inner, across.rank, across.world_size)
        with lane.between_collectives():
            exchange.encode()
        exchange.communicate(across)
        with lane.between_collectives():
            exchange.decode()
        self._kept = exchange  # a stream may still read what it has sent

    def decode(self) -> torch.Tensor:
        gradient = self._work.gradient
        for part, received in zip(torch.split(gradient, self._lengths), self._shards, strict=True):
            self._work.lane.fetch(received, into=part)
        return all_finite(gradient)
