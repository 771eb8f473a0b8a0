"""What calls take in this job, to price the paths that a fixed request leaves open."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.compressors.base import MESSAGE_BYTES
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import predict
from hvd_compress.cost.store import obtain
from hvd_compress.engines.base import Engine

Open = tuple[Collection[Sequence[Collective]], Layout]
"""By what a bucket, or a parameter, may travel: options, each with the collectives that carry it out."""


@dataclass(frozen=True)
class Prices:
    """Curves that were measured, the same on all ranks, and where, in words."""

    curves: Curves
    source: str

    def by_path(self, found: Iterable[Collective], layout: Layout) -> dict[Path, float]:
        """Return what the calls of a bucket take; without collectives of which one was not measured."""
        taken = {}
        for collective in found:
            stages = collective.stages(layout, self.curves.world_size)
            if all((stage.verb, stage.algorithm) in self.curves.by_key for stage in stages):
                taken[collective.path] = predict(collective.path, stages, self.curves).seconds
        return taken


@dataclass(frozen=True)
class ByBytes:
    """Prices in bytes instead of seconds, where nothing was measured."""

    world_size: int

    def by_path(self, found: Iterable[Collective], layout: Layout) -> dict[Path, float]:
        return {each.path: collectives.chain_bytes(each, layout, self.world_size, MESSAGE_BYTES) for each in found}


def cheapest(
    found: Iterable[Collective], layout: Layout, prices: Prices | ByBytes, kernels_s: Mapping[Path, float] | None = None
) -> tuple[float, Collective]:
    """Return the collective that costs the least, the first among equals, and before it what its calls cost.

    What was not measured is no way to take.

    Args:
        kernels_s: what compression adds to that, by path; by default nothing.
    """
    by_path = {collective.path: collective for collective in found}
    costs = prices.by_path(by_path.values(), layout)
    kernels = kernels_s or {}
    path = min(by_path, key=lambda path: kernels.get(path, 0.0) + costs.get(path, math.inf))
    return costs.get(path, math.inf), by_path[path]


def measure(engine: Engine, spaces: Iterable[Open], budget_s: float) -> Prices | None:
    """Return prices of what is open; None where nothing is. Collective, the same on all ranks.

    Of an option those of its collectives are measured that some network makes the fastest.
    """
    keys = _keys(spaces, engine.world_size)
    if not keys:
        return None
    engine.place = f"rank {engine.job_rank}, measuring what is open, which HVD_COMPRESS_ADAPT=0 leaves out"
    curves, known = obtain(engine, keys, budget_s)
    return Prices(curves, "an earlier job" if known else "this job")


def _keys(spaces: Iterable[Open], world_size: int) -> list[Key]:
    """Return the calls to compare, each once, in an order that is the same on all ranks."""
    keys: dict[Key, None] = {}
    for options, layout in spaces:
        left = [each for own in options for each in collectives.undominated(own, layout, world_size) or own[:1]]
        stages = [stage for collective in left for stage in collective.stages(layout, world_size)]
        keys |= dict.fromkeys((stage.verb, stage.algorithm) for stage in stages if len(left) > 1)
    return list(keys)
