"""Hierarchical: sum within a host, exchange among the first ranks of the hosts, broadcast within."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work, add_residual
from hvd_compress.collectives.flat import FLAT, flat_collective
from hvd_compress.collectives.groups import LEADER, leaders, neighbours, no_groups, sizes, within_host
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine

ANY_ENGINE = Capabilities(
    ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather"), (), (torch.float32,)
)
"""For pricing: what an engine can do at least that runs all of it."""


@dataclass(frozen=True)
class Hierarchical(Collective):
    """The first rank of a host, its leader, speaks for all ranks of the host.

    1. An allreduce within the host sums its gradients, in fp32 whatever their dtype.
    2. The leaders exchange these sums, compressed, by the flat collective of the fewest bytes (`flat_collective`).
    3. The leader rounds the result to the gradient's dtype and broadcasts it within its host.

    Error feedback: corrected = sum of the host + the leader's residual. The other ranks send all they have: also the
    residual of an earlier decision, and nothing is left of it.

    Bytes sent by a rank on average, with n elements, M bytes of gradient and L ranks on its host: 2 (L-1)/L 4n and
    (L-1)/L M within it. Across hosts leaders alone send, as the flat collective does with a rank for each host.

    With one rank a host it is the flat collective. With one host the leader compresses the sum all the same.
    """

    compressor: Compressor
    path: Path = Path("hierarchical")
    names: ClassVar[tuple[str, ...]] = ("hierarchical",)
    by_name = True
    in_groups = True

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return any(collective.carries(compressor) for collective in FLAT)

    @classmethod
    def obstacle(cls, can: Capabilities) -> str:
        return no_groups(can)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        runs = cls.carries(compressor) and not cls.obstacle(can)
        if not runs or flat_collective(compressor, _in_fp32(layout), 2, can) is None:
            return ()
        return [Path(name) for name in cls.names]

    @property
    def sent_across(self) -> Compressor:
        """What leaders exchange sums by."""
        return self.compressor

    def up(self, layout: Layout, ranks: int) -> Stage:
        """Return the collective by which a leader gets what it needs of its host, of so many ranks."""
        return Stage("allreduce", "auto", _in_fp32(layout).nbytes, ranks)

    def flat(self, layout: Layout, hosts: int, can: Capabilities) -> Collective:
        """Return what carries the sums of so many hosts, which are fp32."""
        found = flat_collective(self.sent_across, _in_fp32(layout), hosts, can)
        assert found is not None, f"variants() offers no path for {self.sent_across}"
        return found

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Return those of ranks with a host of their own each."""
        return self.stages_on(layout, range(world_size))

    def stages_on(self, layout: Layout, hosts: Sequence[int]) -> tuple[Stage, ...]:
        """Return those of the fullest host, and of the leaders."""
        ranks = sizes(hosts)
        most, count = max(ranks), len(ranks)
        flat = self.flat(layout, count, ANY_ENGINE).stages(_in_fp32(layout), count)
        across = tuple(replace(stage, ranks=count) for stage in flat)
        if most == 1:
            return across
        return (self.up(layout, most), *across, Stage("broadcast", "auto", layout.nbytes, most))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert len(work.hosts) == world_size, "nobody has located the engine"
        return HierarchicalExchange(self, work, rank)


class HierarchicalExchange(Exchange):
    def __init__(self, collective: Hierarchical, work: Work, rank: int) -> None:
        self._collective, self._work = collective, work
        self._leads = neighbours(work.hosts, rank)[LEADER] == rank
        self._own: torch.Tensor  # of this rank, or the sum of its host; fp32, where compression runs
        self._sent: torch.Tensor
        self._result: torch.Tensor

    def encode(self) -> None:
        self._own = self._work.gradient.float()  # itself where it is fp32
        if not self._leads:
            add_residual(self._work, self._own, slice(None))
        self._sent = self._work.lane.post("sum of the host", self._own)

    def communicate(self, engine: Engine) -> None:
        host, across = within_host(engine), leaders(engine)
        self._send_up(host)
        if across is not None:
            self._exchange(across)
        else:
            self._make_room()
        host.broadcast(self._result, LEADER)

    def _exchange(self, across: Engine) -> None:
        """Among the leaders, with the sum of this host."""
        work, lane = self._work, self._work.lane
        layout = _in_fp32(work.layout)
        flat = self._collective.flat(layout, across.world_size, across.capabilities)
        with lane.between_collectives():
            self._sum()
            inner = replace(work, gradient=self._own, layout=layout, rank=across.rank, world_size=across.world_size)
            exchange = flat.exchange(inner, across.rank, across.world_size)
            exchange.encode()
        exchange.communicate(across)
        with lane.between_collectives():
            exchange.decode()
            self._rounded = self._own.to(work.gradient.dtype)
            self._result = lane.post("result", self._rounded)
        self._kept = exchange  # a stream may still read what it has sent

    def _send_up(self, host: Engine) -> None:
        """Let the leader have what it needs of its host."""
        host.allreduce(self._sent)

    def _sum(self) -> None:
        """Have the sum of this host, on its leader."""
        self._own = self._work.lane.fetch(self._sent, into=self._own)

    def _make_room(self) -> None:
        """For the result, on a rank that leads nobody."""
        if self._work.gradient.dtype == torch.float32:
            self._result = self._sent
        else:
            self._take_buffer()

    def _take_buffer(self) -> None:
        gradient, lane = self._work.gradient, self._work.lane
        with lane.between_collectives():
            self._result = lane.buffer("result", gradient.numel(), gradient.dtype)

    def decode(self) -> torch.Tensor:
        gradient = self._work.gradient
        return all_finite(self._work.lane.fetch(self._result, into=gradient))


def _in_fp32(layout: Layout) -> Layout:
    return replace(layout, dtype=torch.float32)
