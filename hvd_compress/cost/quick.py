"""A few collectives, measured in tens of milliseconds: by which path a bucket is to travel whose request is fixed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_compress.cost.calibrate import KIB, Calibrator, nearest
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.cost.store import default_folder, job_shape, load, save
from hvd_compress.engines.base import Engine

SIZES = (KIB, 64 * KIB, 256 * KIB, 16 * KIB)
SAMPLES = 3
MOST_S = 0.5
"""The budget, which is kept but for the first two sizes."""
ALIKE = 2.0
"""Curves whose times differ by at most this factor are of one network: a busy machine makes as much of a difference."""


@dataclass(frozen=True)
class Lines:
    """Prices collectives by straight lines through the points of curves, and beyond them, for `predict`.

    Latency and bandwidth make such lines. Of few points they say more than curves do, which bend between sizes far
    apart and are level below the first one: there, a part of a bucket would cost as much as the whole.
    """

    curves: Curves

    @property
    def world_size(self) -> int:
        return self.curves.world_size

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds of one collective with `size` bytes in each rank's tensor, not below 0."""
        curve = self.curves.by_key[verb, algorithm]
        if len(curve.sizes) == 1:
            return curve.times[0]
        right = min(max(bisect_left(curve.sizes, size), 1), len(curve.sizes) - 1)
        (x, y), (further, later) = ((curve.sizes[place], curve.times[place]) for place in (right - 1, right))
        return max(0.0, y + (later - y) / (further - x) * (size - x))


def quick(
    engine: Engine, keys: Sequence[Key], budget_s: float = MOST_S, folder: Path | None = None
) -> tuple[Curves, bool]:
    """Return curves of these collectives, and whether an earlier job measured them. Collective, the same on all ranks.

    This job measures in any case. Where an earlier one of the same shape has found about the same, its curves are
    returned, so that noise does not make two jobs on one network decide differently; else rank 0 keeps what was found.

    Args:
        keys: verbs and algorithms, the same on all ranks.
        budget_s: how long to measure, at most MOST_S.
        folder: where curves are kept, by default quick/ beside those of whole calibrations.
    """
    budget_s, shape = min(budget_s, MOST_S), job_shape(engine)
    folder = (folder or default_folder("quick")) / "+".join(sorted(f"{verb}-{algorithm}" for verb, algorithm in keys))
    calibrator = Calibrator(engine, budget_s, SIZES, SAMPLES, keys)
    while not calibrator.advance(16):
        pass
    fresh = calibrator.curves()
    saved = load(engine, shape, folder, 0.0, keys)
    known = nearest(fresh, saved, ALIKE)
    if known is not None:
        return known, True
    if engine.rank == 0:
        save(fresh, shape, folder, budget_s)
    return fresh, False
