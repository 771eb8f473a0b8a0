"""Exchanges between steps, of all embeddings of a loader together: what each rank does, in one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hvd_compress.embedding.cache import Cache, Versions
from hvd_compress.embedding.coming import Coming, Kind
from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.messages import (
    Parts,
    send_records,
    send_rows,
    send_updates,
    take_records,
    take_rows,
    take_updates,
)
from hvd_compress.embedding.servers import Shard
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError
from hvd_compress.native.embedding import Counts, Exchange, NativeLookahead


@dataclass(frozen=True)
class Roles:
    """Which ranks of a group train, and which own rows."""

    trainers: tuple[int, ...]
    owners: tuple[int, ...]

    @classmethod
    def of_all(cls, world_size: int) -> Roles:
        return cls(tuple(range(world_size)), tuple(range(world_size)))


@dataclass
class Part:
    """One embedding on one rank.

    Attributes:
        slots: of the rows of the coming batch, by position, once the critical lane of an exchange is through.
        rows: ids of the distinct rows of this rank's batches that are not trained yet, by the number of the batch.
        exchanged: counts of the last exchange.
    """

    layout: Layout
    shard: Shard
    cache: Cache
    planner: NativeLookahead
    versions: Versions | None = None
    slots: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    exchanged: Counts | None = None


class Exchanger:
    """Does this rank's part of what moves between steps. One thread calls it, in the same order on all ranks.

    Attributes:
        step: of the exchange that comes next; -1 before the first step.
    """

    def __init__(self, engine: Engine, roles: Roles, parts: Sequence[Part], first_step: int = 0) -> None:
        """`first_step`: how many steps the embeddings have been trained before."""
        self.engine, self.roles, self.parts = engine, roles, parts
        self.coming = Coming(engine, len(parts), max(part.layout.rows for part in parts))
        self.step, self._first_step = -1, first_step
        self._later: Parts | None = None
        self._planned: list[Exchange] = []

    def gather(self, kind: Kind, rows: Sequence[torch.Tensor] = (), why: str = "") -> bool:
        """Tell all ranks the distinct rows of this rank's next batch, and plan with those of all. Collective.

        Return whether a batch has come. Raises as Coming.gather.
        """
        gathered = self.coming.gather(kind, rows, why)
        if gathered is None:
            return False
        number = self.coming.batches - 1
        for index, (part, (of_all, lengths)) in enumerate(zip(self.parts, gathered, strict=True)):
            part.planner.add(of_all, lengths)
            if rows:
                part.rows[number] = rows[index]
            if part.versions is not None:
                part.gathered[number] = of_all
        return True

    def fill(self) -> int:
        """Return the number of the last batch that fits into the caches by now."""
        return min(part.planner.fill() for part in self.parts)

    def critical(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Exchange what the next step needs. Collective; later() follows.

        `gradients` (n, dim): of the rows of this rank's batch, by position; None for none.

        Raises ConfigError, on all ranks alike, where the next batch does not fit into a cache.
        """
        if self.step >= 0:
            for part in self.parts:
                part.rows.pop(self.step, None)
                if part.versions is not None:
                    part.versions.used(part.gathered.pop(self.step), self._first_step + self.step)
        self._planned = [part.planner.plan() for part in self.parts]
        now, self._later = Parts(self.engine.world_size), Parts(self.engine.world_size)
        for part, planned, given in zip(self.parts, self._planned, gradients, strict=True):
            _check_fits(part, planned, self.step + 1)
            own = given if given is not None else torch.zeros(part.slots.numel(), part.layout.dim)
            if planned.alone.numel():
                mean = own.index_select(0, planned.alone).add_(0.0).div_(len(self.roles.trainers))
                part.cache.update(part.slots.index_select(0, planned.alone), mean, self._first_step + self.step)
            # What leaves in the other lane is taken now: its slots may be filled in this one.
            send_updates(now, planned.critical, part.cache, own, part.layout)
            send_updates(self._later, planned.later, part.cache, own, part.layout)
        self._lane(now, "critical")
        for part, planned in zip(self.parts, self._planned, strict=True):
            part.slots, part.exchanged = planned.slots, planned.counts

    def later(self) -> None:
        """Exchange what steps behind the next one need, and return what is evicted. Collective."""
        assert self._later is not None
        self._lane(self._later, "later")
        self._later = None
        self.step += 1

    def collect(self) -> None:
        """Bring home what ranks keep: owners have all rows as the last step has left them. Collective; later() came
        before, and nothing else changes."""
        parts = Parts(self.engine.world_size)
        kept = [part.planner.kept() for part in self.parts]
        for part, (slots, rows_from) in zip(self.parts, kept, strict=True):
            send_records(parts, slots, rows_from, part.cache)
        received = parts.exchange(self.engine)
        for part, (_, rows_from) in zip(self.parts, kept, strict=True):
            take_records(received, rows_from, part.shard)
        received.check_empty()

    def _lane(self, updates: Parts, lane: str) -> None:
        received = updates.exchange(self.engine)
        lanes = [getattr(planned, lane) for planned in self._planned]
        rows = Parts(self.engine.world_size)
        for part, planned in zip(self.parts, lanes, strict=True):
            take_updates(received, planned, part.shard, len(self.roles.trainers), self._first_step + self.step)
            send_rows(rows, planned, part.shard)
        received.check_empty()
        received = rows.exchange(self.engine)
        for part, planned in zip(self.parts, lanes, strict=True):
            take_rows(received, planned, part.cache)
        received.check_empty()


def _check_fits(part: Part, planned: Exchange, step: int) -> None:
    if planned.overflows is not None:
        rank, rows = planned.overflows
        raise ConfigError(
            f"step {step}: the batch of rank {rank} has {rows} distinct rows of {part.layout.name}, and its cache "
            f"{part.cache.records.shape[0]}: let cache_rows hold the rows of a batch at least"
        )
