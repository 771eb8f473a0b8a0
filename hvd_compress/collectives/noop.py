"""No-op: nothing is sent, and each rank keeps its own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine


@dataclass(frozen=True)
class NoOp(Collective):
    """No collective: a rank's own gradient counts as that of all, so ranks part. Only a policy names it. Bytes: none.

    As other ranks cannot know whether it is finite, the step counts as finite.
    """

    compressor: Compressor
    path: Path = Path("noop")
    names = ("noop",)
    averages = False

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return ()

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _NoExchange(work, world_size)


class _NoExchange(Exchange):
    sends = False
    is_light = True

    def __init__(self, work: Work, world_size: int) -> None:
        self._work, self._factor = work, work.scale * world_size

    def encode(self) -> None: ...

    def communicate(self, engine: Engine) -> None: ...

    def decode(self) -> torch.Tensor:
        if self._factor != 1.0:
            self._work.gradient.mul_(self._factor)
        return torch.ones((), dtype=torch.bool, device=self._work.gradient.device)
