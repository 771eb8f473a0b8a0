"""Hierarchical: sum within a host, exchange among the first ranks of the hosts, broadcast within."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor, SingleRound
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.errors import located
from hvd_compress.feedback.states import GRADIENT_UNITS
from hvd_compress.payload import Payload
from hvd_compress.schemes.base import Exchange, Scheme, Work, add_residual, send_residual
from hvd_compress.schemes.flat import FLAT, flat_scheme
from hvd_compress.schemes.groups import LEADER, leaders, neighbours, no_groups, sizes, within_host
from hvd_compress.schemes.packed import Packer

ACROSS, WITHIN, BOTH = "hierarchical", "hierarchical-within", "hierarchical-both"
ANY_ENGINE = Capabilities(
    ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather"), (), (torch.float32,)
)
"""For pricing: what an engine can do at least that runs all of it."""


@dataclass(frozen=True)
class Hierarchical(Scheme):
    """The first rank of a host, its leader, speaks for all ranks of the host.

    1. An allreduce within the host sums its gradients, in fp32 whatever their dtype.
    2. The leaders exchange these sums, compressed, by the flat scheme that sends the fewest bytes (`flat_scheme`).
    3. The leader rounds the result to the gradient's dtype and broadcasts it within its host.

    Error feedback: corrected = sum of the host + the leader's residual. The other ranks send all they have: also the
    residual of an earlier decision, and nothing is left of it.

    Bytes sent by a rank on average, with n elements, M bytes of gradient and L ranks on its host: 2 (L-1)/L 4n and
    (L-1)/L M within it. Across hosts leaders alone send, as the flat scheme does with as many ranks as there are hosts.

    With one rank a host it is the flat scheme. With one host the leader compresses the sum all the same.
    """

    compressor: Compressor
    path: Path = Path(ACROSS)
    names: ClassVar[tuple[str, ...]] = (ACROSS,)
    by_name = True
    in_groups = True
    within: ClassVar[bool] = False
    """Whether what travels to the leader is compressed."""

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return any(scheme.carries(compressor) for scheme in FLAT)

    @classmethod
    def obstacle(cls, can: Capabilities) -> str:
        return no_groups(can)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        runs = cls.carries(compressor) and not cls.obstacle(can) and (not cls.within or "gather" in can.verbs)
        if not runs or flat_scheme(compressor, _in_fp32(layout), 2, can) is None:
            return ()
        return [Path(name) for name in cls.names]

    def flat(self, layout: Layout, hosts: int, can: Capabilities) -> Scheme:
        """Return what carries the sums of so many hosts, which are fp32."""
        sent = Cast() if self.path.scheme == WITHIN else self.compressor
        found = flat_scheme(sent, _in_fp32(layout), hosts, can)
        assert found is not None, f"variants() offers no path for {sent}"
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
        up = Stage("allreduce", "auto", _in_fp32(layout).nbytes, most)
        if self.within:
            up = Stage("gather", "auto", _wire_bytes(self.compressor, layout), most)
        return (up, *across, Stage("broadcast", "auto", layout.nbytes, most))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert len(work.hosts) == world_size, "nobody has located the engine"
        return _HierarchicalExchange(self, work, rank)


@dataclass(frozen=True)
class HierarchicalWithin(Hierarchical):
    """As Hierarchical, and what travels to the leader is compressed; across hosts it is (-both) or it is not (-within).

    In the place of the allreduce the leader gathers payloads of its host, and adds its own gradient, uncompressed, and
    theirs, in rank order. The others remember what their payloads lose, the leader what is lost across hosts; where
    nothing is, its residual is sent along.

    Bytes sent by a rank on average, with a payload of P bytes: (L-1)/L (P + M) within its host. Across hosts the
    leaders exchange payloads (-both), or allreduce 4n bytes (-within).
    """

    path: Path = Path(BOTH)
    names = (WITHIN, BOTH)
    within = True

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return compressor.compresses and _is_gradient(compressor)


class _HierarchicalExchange(Exchange):
    def __init__(self, scheme: Hierarchical, work: Work, rank: int) -> None:
        self._scheme, self._work = scheme, work
        self._leads = neighbours(work.hosts, rank)[LEADER] == rank
        self._packer = Packer(work)
        self._own: torch.Tensor  # of this rank, or the sum of its host; fp32, where compression runs
        self._sent: torch.Tensor
        self._result: torch.Tensor

    def encode(self) -> None:
        if self._scheme.within and not self._leads:
            send_residual(self._scheme.compressor, self._work)
            self._sent = self._packer.pack("to the leader", next(self._scheme.compressor.rounds(self._work)))
            return
        self._own = self._work.gradient.float()  # itself where it is fp32
        if not self._leads:
            add_residual(self._work, self._own, slice(None))
        if self._scheme.within:
            # Of the others' length: engines count bytes of a gather by it. Nobody reads it.
            nbytes = _wire_bytes(self._scheme.compressor, self._work.layout)
            self._sent = self._work.lane.buffer("to the leader", nbytes, torch.uint8)
        else:
            self._sent = self._work.lane.post("sum of the host", self._own)

    def communicate(self, engine: Engine) -> None:
        host, across = within_host(engine), leaders(engine)
        if self._scheme.within:
            received = host.gather(self._sent, LEADER)
        else:
            host.allreduce(self._sent)
            received = None
        if across is not None:
            self._exchange(across, received)
        else:
            self._make_room()
        host.broadcast(self._result, LEADER)

    def _exchange(self, across: Engine, received: Sequence[torch.Tensor] | None) -> None:
        """Among the leaders, with the sum of this host."""
        work, lane = self._work, self._work.lane
        layout = _in_fp32(work.layout)
        flat = self._scheme.flat(layout, across.world_size, across.capabilities)
        with lane.between_collectives():
            self._sum(received)
            inner = replace(work, gradient=self._own, layout=layout, rank=across.rank, world_size=across.world_size)
            exchange = flat.exchange(inner, across.rank, across.world_size)
            exchange.encode()
        exchange.communicate(across)
        with lane.between_collectives():
            exchange.decode()
            self._rounded = self._own.to(work.gradient.dtype)
            self._result = lane.post("result", self._rounded)
        self._kept = exchange  # a stream may still read what it has sent

    def _sum(self, received: Sequence[torch.Tensor] | None) -> None:
        lane = self._work.lane
        if received is None:
            self._own = lane.fetch(self._sent, into=self._own)
            return
        compressor = self._scheme.compressor
        assert isinstance(compressor, SingleRound)
        template = _template(compressor, self._work)
        for rank, packed in enumerate(received):
            if rank != LEADER:
                payload = self._packer.unpack(rank, packed, template)
                with located(f"payload from rank {rank} of the host"):
                    compressor.add_to(self._own, payload, 1.0, self._work.layout)

    def _make_room(self) -> None:
        """For the result, on a rank that leads nobody."""
        gradient, lane = self._work.gradient, self._work.lane
        if not self._scheme.within and gradient.dtype == torch.float32:
            self._result = self._sent
        else:
            with lane.between_collectives():
                self._result = lane.buffer("result", gradient.numel(), gradient.dtype)

    def decode(self) -> torch.Tensor:
        gradient = self._work.gradient
        return all_finite(self._work.lane.fetch(self._result, into=gradient))


def _is_gradient(compressor: Compressor) -> bool:
    """Whether a payload stands for a gradient, which the leader can add to its own.

    Not where there are several rounds, or where payloads do not add up: signSGD sends votes. Nor where something in
    units of the gradient is kept: DGC sends velocities.
    """
    if not isinstance(compressor, SingleRound) or not compressor.adds_up:
        return False
    own = compressor.new_state(Layout.of((64, 64)), torch.device("cpu"))
    return not any(kind.startswith(GRADIENT_UNITS) for kind, _ in own)


def _template(compressor: SingleRound, work: Work) -> Payload:
    """Return a payload with the names and dtypes of what the other ranks of a host send."""
    tensors = compressor.compress(torch.ones(1, dtype=torch.float32, device=work.lane.device), Layout.of(1)).tensors
    return Payload(tensors, work.gradient.numel())


def _in_fp32(layout: Layout) -> Layout:
    return replace(layout, dtype=torch.float32)


def _wire_bytes(compressor: Compressor, layout: Layout) -> int:
    return sum(round_.nbytes for round_ in compressor.wire(layout))
