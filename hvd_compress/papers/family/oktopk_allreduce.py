"""Ok-Topk: selected elements are summed by regions, and the largest sums are sent to all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.compressors.sparsifier import Selected
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard
from hvd_compress.errors import PayloadError, received
from hvd_compress.papers.family.oktopk import BINS, OkTopk
from hvd_compress.payload import Payload

COUNT_BYTES = 8
UNEVEN = 4
"""Where a rank has more than so many times the average of the global selection, that is shared out first."""


@dataclass(frozen=True)
class OkTopkAllReduce(Collective):
    """The O(k) sparse allreduce of Ok-Topk (Li and Hoefler 2022, Algorithm 1), with the residuals of its Algorithm 2.

    1. Split and reduce: the bucket has a region for each rank. What a rank has selected in a region it sends to the
       region's owner, which adds it in rank order.
    2. Balance and all-gather: sums that reach the global threshold are sent to all; first shared out among ranks, where
       one of them has more than 4 times the average.
    3. The residual is 0 where this rank's selection is part of the global one, and corrected elsewhere.

    In steps that are multiples of `threshold_steps` the global threshold is the k-th largest magnitude of all sums. In
    those between it is that of the step before, or, beyond the paper, follows how many sums reached it. In steps that
    are multiples of `region_steps` ranks add up where their selected elements lie, and regions are such that each gets
    as many; the paper averages the boundaries that each rank would like.

    Bytes sent by a rank, with N ranks, where k elements are selected and k sums reach the threshold: (N-1)/N 8k in the
    first part, as much in the all-gather of the second, and as much again where it shares out; together at most
    (N-1)/N 24k, the paper's 6k (N-1)/N values. In the first steps residuals grow fast, and more sums reach the
    threshold of the step before. Beside that (N-1) 8 bytes of counts; in steps that evaluate the threshold (N-1) times
    4 bytes for each of a rank's k largest sums, and in those that evaluate regions (N-1) 4 KiB.
    """

    compressor: OkTopk
    path: Path = Path("oktopk")
    names = ("oktopk",)

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return not {*cls.names}.isdisjoint(compressor.own_collectives)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return [Path("oktopk")] if cls.carries(compressor) and {"alltoall", "allgather"} <= set(can.verbs) else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Those of a step that evaluates nothing and shares nothing out."""
        sent = self.compressor.coding.nbytes(layout.numel, self.compressor.kept(layout))
        shared = Stage("allgather", "auto", sent / world_size)
        return (Stage("alltoall", "auto", sent), Stage("allgather", "auto", COUNT_BYTES), shared)

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _Exchange(self.compressor, work, rank, world_size)


class _Exchange(Exchange):
    def __init__(self, compressor: OkTopk, work: Work, rank: int, world_size: int) -> None:
        self._compressor, self._work, self._rank, self._world_size = compressor, work, rank, world_size
        self._packer = Packer(work)
        self._local: Selected
        self._counted: torch.Tensor | None = None
        self._threshold = 0.0
        self._received: list[torch.Tensor]

    def encode(self) -> None:
        compressor, work = self._compressor, self._work
        self._local = compressor.select_local(work)
        if work.step % compressor.region_steps == 0:
            self._counted = work.lane.post("density", compressor.histogram(self._local[0], work.layout))
        else:
            self._split()

    def communicate(self, engine: Engine) -> None:
        """Which calls are launched depends on the step, and on counts that all ranks have exchanged."""
        lane, evaluates = self._work.lane, self._work.step % self._compressor.threshold_steps == 0
        if self._counted is not None:
            counts = engine.allgather(self._counted, [BINS] * self._world_size)
            with lane.between_collectives():
                total = torch.stack([lane.fetch(one) for one in counts]).sum(0, dtype=torch.int64)
                self._compressor.set_density(self._work, total)
                self._split()
        parts = engine.alltoall(self._outgoing)
        with lane.between_collectives():
            self._reduce(parts)
            magnitudes = self._packer.pack("magnitudes", self._largest_magnitudes()) if evaluates else None
        if magnitudes is not None:
            gathered = engine.allgather(magnitudes)
            with lane.between_collectives():
                self._threshold = self._evaluated(gathered)
        with lane.between_collectives():
            self._select()
            count = lane.post("count", torch.tensor([self._sums[0].numel()], device=self._sums[0].device))
        self._gather(engine, [int(one) for one in engine.allgather(count, [1] * self._world_size)])

    def _split(self) -> None:
        """Pack what was selected for the owner of each region."""
        indices, values = self._local
        starts = self._compressor.starts(self._work, self._world_size).to(indices)
        inner = torch.searchsorted(indices, starts).tolist()
        cuts = [0, *inner, indices.numel()]
        self._own = indices[cuts[self._rank] : cuts[self._rank + 1]], values[cuts[self._rank] : cuts[self._rank + 1]]
        self._outgoing = [
            self._work.lane.buffer("own", 0, torch.uint8)
            if owner == self._rank
            else self._packer.pack(f"to {owner}", self._payload(indices[first:last], values[first:last]))
            for owner, (first, last) in enumerate(pairwise(cuts))
        ]

    def _reduce(self, parts: Sequence[torch.Tensor]) -> None:
        """Add what ranks have sent of this rank's region: indices, ascending, and sums."""
        found = [
            self._own if rank == self._rank else self._unpacked(rank, part, "region") for rank, part in enumerate(parts)
        ]
        union, places = torch.unique(torch.cat([indices for indices, _ in found]), return_inverse=True)
        total = torch.zeros(union.numel(), dtype=torch.float32, device=union.device)
        own_places = torch.split(places, [indices.numel() for indices, _ in found])
        for place, (_, values) in zip(own_places, found, strict=True):
            total.index_add_(0, place, values)
        self._sums = union, total
        self._threshold = self._compressor.global_threshold(self._work)

    def _largest_magnitudes(self) -> Payload:
        """All that the k-th largest of all ranks' sums can depend on."""
        k = min(self._compressor.kept(self._work.layout), self._sums[1].numel())
        return Payload({"values": native.topk(self._sums[1], k)[1].abs()}, self._work.layout.numel)

    def _evaluated(self, gathered: Sequence[torch.Tensor]) -> float:
        template = Payload({"values": torch.empty(0, dtype=torch.float32)}, self._work.layout.numel)
        found = [self._packer.unpack(rank, one, template)["values"] for rank, one in enumerate(gathered)]
        values = torch.cat(found)
        k = min(self._compressor.kept(self._work.layout), values.numel())
        least = float(torch.topk(values, k).values.min()) if k else 0.0
        return torch.inf if math.isnan(least) else least  # nothing but NaN is sent then, which all are to see

    def _select(self) -> None:
        """Keep the sums that reach the threshold, and all that are NaN; without a threshold this rank's share of k."""
        indices, sums = self._sums
        if self._threshold <= 0.0:
            share = -(-self._compressor.kept(self._work.layout) // self._world_size)
            places = native.topk(sums, min(share, sums.numel()))[0].long()
        else:
            places = native.threshold_select(sums, self._threshold)[0].long()
        self._sums = indices[places], sums[places]

    def _payload(self, indices: torch.Tensor, values: torch.Tensor) -> Payload:
        return Payload({"indices": indices, "values": values}, self._work.layout.numel)

    def _packed_bytes(self, count: int) -> int:
        empty = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._payload(empty.int(), empty).packed_bytes

    def _unpacked(self, rank: int, packed: torch.Tensor, what: str) -> Selected:
        """Return indices and values that a rank has sent.

        Raises:
            PayloadError: there are not as many of both; indices are checked where they are used.
        """
        template = self._payload(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.float32))
        payload = self._packer.unpack(rank, packed, template)
        indices, values = payload["indices"], payload["values"]
        if indices.numel() != values.numel():
            raise PayloadError(f"{what} from rank {rank}: {indices.numel()} indices and {values.numel()} values")
        return indices, values

    def _gather(self, engine: Engine, counts: Sequence[int]) -> None:
        """Send the global selection to all; `counts` says how much of it each rank has."""
        lane, total = self._work.lane, sum(counts)
        if max(counts) * self._world_size > UNEVEN * total:
            counts = self._share_out(engine, counts)
        with lane.between_collectives():
            packed = self._packer.pack("selected", self._payload(*self._sums))
        lengths = [self._packed_bytes(count) for count in counts]
        inbox = lane.inbox("selection", sum(lengths), torch.uint8)
        self._received = engine.allgather(packed, lengths, out=inbox)

    def _share_out(self, engine: Engine, counts: Sequence[int]) -> list[int]:
        """Move parts of the global selection so that all ranks have as many, in the same order; return how many."""
        total, before = sum(counts), sum(counts[: self._rank])
        wanted = [shard(total, self._world_size, rank) for rank in range(self._world_size)]
        indices, sums = self._sums
        held = range(before, before + counts[self._rank])
        with self._work.lane.between_collectives():
            outgoing = []
            for rank, part in enumerate(wanted):
                first, last = (min(max(place, held.start), held.stop) - before for place in (part.start, part.stop))
                share = self._payload(indices[first:last], sums[first:last])
                outgoing.append(self._packer.pack(f"share of {rank}", share))
        parts = engine.alltoall(outgoing)
        with self._work.lane.between_collectives():
            found = [self._unpacked(rank, part, "share") for rank, part in enumerate(parts)]
            self._sums = torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])
        return [part.stop - part.start for part in wanted]

    def decode(self) -> torch.Tensor:
        work = self._work
        assert work.pending is not None
        lists = [self._unpacked(rank, buffer, "selection") for rank, buffer in enumerate(self._received)]
        indices, sums = torch.cat([one[0] for one in lists]), torch.cat([one[1] for one in lists])
        with received():
            native.scatter_lists(lists, work.gradient, work.scale, clear=True)
        self._compressor.set_global_threshold(work, self._threshold, sums)
        own = self._local[0]
        native.take(work.pending, own[torch.isin(own, indices)])
        return all_finite(native.gather(work.gradient, indices))
