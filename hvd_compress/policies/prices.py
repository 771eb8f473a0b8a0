"""What collectives take in this job, to price the paths that a fixed request leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import predict
from hvd_compress.cost.quick import Lines, quick
from hvd_compress.cost.store import obtain
from hvd_compress.engines.base import Engine
from hvd_compress.schemes import Scheme

FEW = 6
"""Collectives that are measured by themselves, in half a second: more of them are compared by a whole calibration."""

Open = tuple[Sequence[Scheme], Layout]
"""By which schemes a bucket, or a parameter, may travel."""


@dataclass(frozen=True)
class Prices:
    """Curves that were measured, the same on all ranks, and where, in words."""

    curves: Curves
    source: str

    def by_path(self, found: Iterable[Scheme], layout: Layout) -> dict[Path, float]:
        """Return what the collectives of a bucket take; without schemes of which one was not measured."""
        taken = {}
        for scheme in found:
            stages = scheme.stages(layout, self.curves.world_size)
            if all((stage.verb, stage.algorithm) in self.curves.by_key for stage in stages):
                taken[scheme.path] = predict(scheme.path, stages, Lines(self.curves)).seconds
        return taken


def measured(engine: Engine, open_: Iterable[Open], budget_s: float) -> Prices | None:
    """Return prices of those that some network makes the fastest; None where none is open.

    Collective, the same on all ranks.
    """
    ways = ((schemes.undominated(found, layout, engine.world_size), layout) for found, layout in open_)
    return measure(engine, keys_of(ways, engine.world_size), budget_s)


def keys_of(ways: Iterable[Open], world_size: int) -> list[Key]:
    """Return the collectives of schemes, each once, in an order that is the same on all ranks."""
    return list(
        dict.fromkeys(
            (stage.verb, stage.algorithm)
            for found, layout in ways
            for scheme in found
            for stage in scheme.stages(layout, world_size)
        )
    )


def measure(engine: Engine, keys: Sequence[Key], budget_s: float) -> Prices | None:
    """Return prices of these collectives; None where there are none. Collective, the same on all ranks."""
    if not keys:
        return None
    engine.place = f"rank {engine.job_rank}, measuring what is open, which HVD_COMPRESS_ADAPT=0 leaves out"
    curves, known = quick(engine, keys, budget_s) if len(keys) <= FEW else obtain(engine, budget_s)
    if missing := [key for key in keys if key not in curves.by_key]:  # all-to-all is in no whole calibration
        curves = replace(curves, by_key={**curves.by_key, **quick(engine, missing, budget_s)[0].by_key})
    return Prices(curves, "an earlier job" if known else "this job")
