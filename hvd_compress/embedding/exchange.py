"""Exchanges between steps, of all embeddings of a loader together: what each rank does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch

from hvd_compress.embedding.cache import Cache, Versions
from hvd_compress.embedding.coming import Coming, Gathered, Kind
from hvd_compress.embedding.group import Engines, Roles
from hvd_compress.embedding.journal import Journal
from hvd_compress.embedding.kernels import Counts, Exchange, Lane, NativeLookahead
from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.means import mean_of_one
from hvd_compress.embedding.messages import (
    Outgoing,
    send_records,
    send_rows,
    send_updates,
    take_records,
    take_rows,
    take_updates,
)
from hvd_compress.embedding.precision import Precision
from hvd_compress.embedding.residuals import HeldBack, Residuals
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.base import Call, Engine
from hvd_compress.errors import ConfigError


@dataclass
class Part:
    """One embedding on one rank.

    Attributes:
        first_step: how many steps it was trained when the iteration began; None: rows are only read.
        precision: of synchronised rows and gradients on the network.
        residuals: what it loses of gradients; None where it loses nothing, or all ranks only read.
        slots: of the rows of the coming batch, by position, once the critical lane of an exchange is through.
        used: in the debug mode, the rows that all ranks use in each batch that is not trained yet.
        own: where there is a journal, or there are residuals, those that this rank uses.
        counts: of the last exchange.
    """

    layout: Layout
    shard: Shard
    cache: Cache
    planner: NativeLookahead
    precision: Precision
    first_step: int | None = None
    versions: Versions | None = None
    residuals: Residuals | None = None
    slots: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    used: deque[torch.Tensor] = field(default_factory=deque)
    own: deque[torch.Tensor] = field(default_factory=deque)
    counts: Counts | None = None

    def trained(self, step: int) -> int | None:
        """Return how many steps it was trained before this one of the iteration; None where nothing is updated."""
        return None if self.first_step is None or step < 0 else self.first_step + step


@dataclass
class Moved:
    """What this rank has sent for a step, in bytes, and how long the collectives took, with waiting for other ranks.

    Attributes:
        told: which rows its batch uses.
        critical: what the next step waits for.
        later: what moves behind it.
    """

    told_bytes: int = 0
    critical_bytes: int = 0
    later_bytes: int = 0
    told_s: float = 0.0
    critical_s: float = 0.0
    later_s: float = 0.0

    def record(self, what: str, calls: Sequence[Call]) -> None:
        setattr(self, f"{what}_bytes", sum(call.sent_bytes for call in calls))
        setattr(self, f"{what}_s", sum(call.seconds for call in calls))


@dataclass
class _Later:
    """What is left of an exchange when its critical lane is through."""

    step: int
    planned: list[Exchange]
    updates: Outgoing


class Exchanger:
    """Does this rank's part of what moves between steps.

    Three threads call it, each its own methods: gather(); add(), fill(), critical() and collect(); later(). On all
    ranks each thread does the same in the same order. The other lane of an exchange may run beside the critical lane
    of the next one, as no row is in both; but the rows that the latter prefetches may have been returned in the
    former, which then comes first. It is over when the step after the next begins.

    Attributes:
        step: of the exchange that comes next; -1 before the first step.
        moved: by the last exchange that is through.
    """

    def __init__(
        self,
        engines: Engines,
        roles: Roles,
        parts: Sequence[Part],
        journal: Journal | None = None,
    ) -> None:
        """`journal`: of all embeddings, which then were trained equally many steps."""
        self.engines, self.roles, self.parts, self._journal = engines, roles, parts, journal
        self.coming = Coming(engines.control, len(parts), max(part.layout.rows for part in parts))
        self.step = -1
        self.moved = Moved()
        self._laters: SimpleQueue[_Later] = SimpleQueue()

    @property
    def rank(self) -> int:
        return self.engines.control.rank

    def gather(self, kind: Kind, rows: Sequence[torch.Tensor] = (), why: str = "") -> list[Gathered] | Kind:
        """Coming.gather()."""
        with self.engines.control.aside() as calls:
            gathered = self.coming.gather(kind, rows, why)
        self.moved.record("told", calls)
        return gathered

    def add(self, gathered: Sequence[Gathered]) -> None:
        """Plan with the next batch."""
        for part, of_all in zip(self.parts, gathered, strict=True):
            part.planner.add(of_all.rows, of_all.lengths, part.layout.rows)
            if part.versions is not None:
                part.used.append(of_all.rows)
            if self._journal is not None or part.residuals is not None:
                part.own.append(torch.split(of_all.rows, of_all.lengths)[self.rank])

    def fill(self) -> int:
        """Return the number of the last batch that fits into the caches by now."""
        return min(part.planner.fill() for part in self.parts)

    def critical(self, gradients: Sequence[torch.Tensor | None], earlier: Callable[[], object]) -> None:
        """Exchange what the next step needs. Collective; later() follows.

        Args:
            gradients: (n, dim), of the rows of this rank's batch, by position; None for none.
            earlier: waits until later() is over for the exchange before.

        Raises ConfigError, on all ranks alike, where the next batch does not fit into a cache.
        """
        if self.step >= 0:
            for part in self.parts:
                if part.versions is not None:
                    used = part.used.popleft()
                    if (step := part.trained(self.step)) is not None:
                        part.versions.used(used, step)
        planned = [part.planner.plan() for part in self.parts]
        for part, each in zip(self.parts, planned, strict=True):
            _check_fits(part, each, self.step + 1)
        world = self.engines.critical.world_size
        now, then = Outgoing(world), Outgoing(world)
        for at, (part, each, given) in enumerate(zip(self.parts, planned, gradients, strict=True)):
            own, step = given, part.trained(self.step)
            if given is None and step is not None:
                own = torch.zeros(part.slots.numel(), part.layout.dim)
            if part.residuals is not None and own is not None:
                own = part.residuals.take(own, part.slots, part.own[0])
            if own is not None and step is not None and each.alone.numel():
                mean = mean_of_one(own.index_select(0, each.alone), len(self.roles.trainers))
                records = part.cache.update(part.slots.index_select(0, each.alone), mean, step)
                if self._journal is not None:
                    self._journal.write("critical", step + 1, at, part.own[0].index_select(0, each.alone), records)
            # What leaves in the other lane is taken now: its slots may be filled in this one.
            send_updates(now, each.critical, part.cache, own, part.slots, part.residuals)
            send_updates(then, each.later, part.cache, own, part.slots, part.residuals)
        if any(each.counts.urgent for each in planned):
            earlier()
        with self.engines.critical.aside() as calls:
            self._exchange("critical", now, [each.critical for each in planned], self.step)
        self.moved.record("critical", calls)
        for part, each in zip(self.parts, planned, strict=True):
            part.slots, part.counts = each.slots, each.counts
            if self.step >= 0 and part.own:
                part.own.popleft()
        self._laters.put(_Later(self.step, planned, then))
        self.step += 1

    def later(self) -> None:
        """Exchange what steps behind the next one need, and return what is evicted. Collective, behind critical()."""
        left = self._laters.get_nowait()
        with self.engines.later.aside() as calls:
            self._exchange("later", left.updates, [each.later for each in left.planned], left.step)
        self.moved.record("later", calls)

    def collect(self) -> list[HeldBack]:
        """Bring home what ranks keep: owners have all rows as the last step has left them, but for what is held back of
        gradients; return that, of each embedding, where precision is lost. Collective, behind later(); nothing else
        changes."""
        engine = self.engines.critical
        parts = Outgoing(engine.world_size)
        kept = [part.planner.kept() for part in self.parts]
        for part, (slots, rows_from) in zip(self.parts, kept, strict=True):
            send_records(parts, slots, rows_from, part.cache)
        with engine.aside():
            received = parts.exchange(engine)
        for part, (_, rows_from) in zip(self.parts, kept, strict=True):
            take_records(received, rows_from, part.shard)
        received.check_empty()
        residuals = [part.residuals for part in self.parts if part.residuals is not None]
        with engine.aside():
            return [each.collect(engine, self.roles.owners, len(self.roles.trainers)) for each in residuals]

    def _exchange(self, name: str, updates: Outgoing, lanes: Sequence[Lane], number: int) -> None:
        engine: Engine = getattr(self.engines, name)
        received = updates.exchange(engine)
        rows = Outgoing(engine.world_size)
        for at, (part, lane) in enumerate(zip(self.parts, lanes, strict=True)):
            step = part.trained(number)
            updated = take_updates(received, lane, part.shard, len(self.roles.trainers), step, part.precision)
            if self._journal is not None and updated is not None and step is not None:
                self._journal.write(name, step + 1, at, part.shard.ids(lane.updated), updated)
            send_rows(rows, lane, part.shard, part.precision)
        received.check_empty()
        received = rows.exchange(engine)
        for part, lane in zip(self.parts, lanes, strict=True):
            take_rows(received, lane, part.cache, part.precision)
        received.check_empty()
        if self._journal is not None and (step := self.parts[0].trained(number)) is not None:
            self._journal.end(name, step + 1)


def _check_fits(part: Part, planned: Exchange, step: int) -> None:
    if planned.overflows is not None:
        rank, rows = planned.overflows
        raise ConfigError(
            f"step {step}: the batch of rank {rank} has {rows} distinct rows of {part.layout.name}, and its cache "
            f"{part.cache.records.shape[0]}: let cache_rows hold the rows of a batch at least"
        )
