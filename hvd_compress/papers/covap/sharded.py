"""Sharded: a part of a bucket travels by another collective, and the rest is not sent in this step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.layout import shard
from hvd_compress.papers.covap.skip import keep


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a bucket, which are equal within one element; by default all of it."""

    number: int = 0
    count: int = 1

    def of(self, numel: int) -> slice:
        """Return its elements."""
        return shard(numel, self.count, self.number)

    def __str__(self) -> str:
        return f"shard {self.number + 1} of {self.count}"


WHOLE = Shard()


@dataclass(frozen=True)
class Sharded(Collective):
    """What another collective makes of a shard; elsewhere the result is zero, as in Skip.

    Bytes: those of the shard.

    Attributes:
        holds: as of Skip, for parameters of which the shard has nothing.
    """

    sent: Collective
    part: Shard
    holds: bool = False
    names = ()

    @property
    def compressor(self) -> Compressor:  # type: ignore[override]
        return self.sent.compressor

    @property
    def path(self) -> Path:  # type: ignore[override]
        return self.sent.path

    @property
    def in_groups(self) -> bool:  # type: ignore[override]
        return self.sent.in_groups

    @property
    def error_feedback(self) -> bool:
        return True

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return self.sent.stages(self._layout(layout), world_size)

    def stages_on(self, layout: Layout, hosts: Sequence[int]) -> tuple[Stage, ...]:
        return self.sent.stages_on(self._layout(layout), hosts)

    def unsent(self, layout: Layout) -> Sequence[str]:
        if not self.holds:
            return ()
        sent, start, found = self.part.of(layout.numel), 0, []
        for name, numel in zip(layout.names, layout.segments, strict=True):
            if start + numel <= sent.start or start >= sent.stop:
                found.append(name)
            start += numel
        return found

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _ShardExchange(self, work, rank, world_size)

    def _layout(self, layout: Layout) -> Layout:
        return layout.part(self.part.of(layout.numel), layout.dtype)


class _ShardExchange(Exchange):
    def __init__(self, collective: Sharded, work: Work, rank: int, world_size: int) -> None:
        self._collective, self._work, self._rank, self._world_size = collective, work, rank, world_size
        self._part = collective.part.of(work.layout.numel)
        self._rest = slice(0, self._part.start), slice(self._part.stop, None)
        self._inner: Exchange

    def encode(self) -> None:
        # Not before: a residual may be read from here on, in the order of the lane.
        self._inner = self._collective.sent.exchange(self._work.of_part(self._part), self._rank, self._world_size)
        for rest in self._rest:
            keep(self._work, rest)
        self._inner.encode()

    def communicate(self, engine: Engine) -> None:
        self._inner.communicate(engine)

    def decode(self) -> torch.Tensor:
        for rest in self._rest:
            self._work.gradient[rest].zero_()
        return self._inner.decode()
