"""Time as a function of bytes, measured on the engine in use: what formulas cannot know of a library and a network."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_compress.cost.formulas import VERBS, Terms
from hvd_compress.errors import ConfigError, UnsupportedError

Key = tuple[str, str]
"""Verb and algorithm."""


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes, at increasing sizes of at least 1 byte. Seconds are positive and never decrease.

    Between two sizes the logarithm of time is linear in the logarithm of bytes. Below the first time stays as it is
    there: latency. Beyond the last it grows linearly in bytes, as it did between the last two.
    """

    sizes: tuple[int, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        pairs = zip(self.sizes, self.sizes[1:], strict=False), zip(self.times, self.times[1:], strict=False)
        ordered = all(a < b for a, b in pairs[0]) and all(a <= b for a, b in pairs[1])
        if not self.sizes or len(self.sizes) != len(self.times) or self.sizes[0] < 1 or not ordered:
            raise ConfigError(f"not a curve: {len(self.times)} times at sizes {list(self.sizes)}")
        if not (self.times[0] > 0 and self.times[-1] < math.inf):
            raise ConfigError(f"not a curve: times from {self.times[0]} to {self.times[-1]} s")

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> Curve:
        """Return the curve nearest to `measured` (seconds by bytes) that never decreases.

        Pool adjacent violators, on the logarithms: where more bytes took less time, both get their geometric mean.
        """
        pools: list[tuple[float, int]] = []  # mean logarithm, how many sizes
        for size in sorted(measured):
            mean, count = math.log(max(measured[size], 1e-9)), 1
            while pools and pools[-1][0] > mean:
                before, others = pools.pop()
                mean, count = (before * others + mean * count) / (others + count), others + count
            pools.append((mean, count))
        times = [math.exp(mean) for mean, count in pools for _ in range(count)]
        return cls(tuple(sorted(measured)), tuple(times))

    def seconds(self, size: float) -> float:
        """Return the time of `size` bytes."""
        sizes, times = self.sizes, self.times
        if size <= sizes[0]:
            return times[0]
        if size > sizes[-1]:
            return times[-1] + self._slope() * (size - sizes[-1])
        right = bisect_left(sizes, size)
        left = right - 1
        share = math.log(size / sizes[left]) / math.log(sizes[right] / sizes[left])
        return math.exp((1 - share) * math.log(times[left]) + share * math.log(times[right]))

    def _slope(self) -> float:
        """Return the seconds a byte beyond the last size; of the whole curve, where the last times were pooled."""
        if len(self.sizes) == 1:
            return 0.0
        last = (self.times[-1] - self.times[-2]) / (self.sizes[-1] - self.sizes[-2])
        return last or (self.times[-1] - self.times[0]) / (self.sizes[-1] - self.sizes[0])


@dataclass(frozen=True)
class Curves:
    """A curve for each verb and algorithm that was measured. The same on all ranks.

    They price collectives for `predict`, as `formulas.Formulas` does.
    """

    world_size: int
    by_key: Mapping[Key, Curve]

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds of `verb` with `size` bytes a rank. Raises UnsupportedError for what was not measured."""
        curve = self.by_key.get((verb, algorithm))
        if curve is None:
            measured = ", ".join(f"{verb} {algorithm}" for verb, algorithm in self.by_key)
            raise UnsupportedError(f"{verb} {algorithm} was not measured; there are curves of {measured}")
        return curve.seconds(size)

    def fit(self) -> tuple[float, float]:
        """Return (alpha, beta), in seconds and seconds per byte, that bring the formulas nearest to the curves.

        Least squares of the relative error over all points of forced algorithms (the formulas know what those do),
        neither negative. (0, 0) where nothing was forced or there is one rank.
        """
        keys = [(verb, algorithm) for verb, algorithm in self.by_key if algorithm != "auto"]
        points = [
            (VERBS[key[0]](size, self.world_size, key[1]), seconds)
            for key in keys
            for size, seconds in zip(self.by_key[key].sizes, self.by_key[key].times, strict=True)
        ]
        return fit_terms(points) if points and self.world_size > 1 else (0.0, 0.0)

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain lists and dictionaries, one for each curve."""
        return [
            {"verb": verb, "algorithm": algorithm, "bytes": list(curve.sizes), "seconds": list(curve.times)}
            for (verb, algorithm), curve in self.by_key.items()
        ]

    @classmethod
    def from_json(cls, world_size: int, rows: Iterable[Mapping[str, Any]]) -> Curves:
        """Read what `to_json` wrote. Raises ConfigError for anything else."""
        try:
            curves = {
                (str(row["verb"]), str(row["algorithm"])): Curve(
                    tuple(int(size) for size in row["bytes"]), tuple(float(time) for time in row["seconds"])
                )
                for row in rows
            }
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"not curves: {json.dumps(str(error))}") from error
        if not curves:
            raise ConfigError("not curves: there are none")
        return cls(world_size, curves)


def fit_terms(points: Sequence[tuple[Terms, float]]) -> tuple[float, float]:
    """Return (alpha, beta) >= 0 that minimise the sum of (predicted / measured - 1)^2 over (terms, seconds)."""
    scaled = np.array([(terms.steps / seconds, terms.bytes / seconds) for terms, seconds in points])
    ones = np.ones(len(points))
    scale = scaled.max(axis=0)
    scale[scale == 0] = 1.0
    alpha, beta = np.linalg.lstsq(scaled / scale, ones, rcond=None)[0] / scale
    if alpha < 0 or beta < 0:  # the best with two bounds lies on one of them
        only = 0 if beta < 0 else 1
        column = scaled[:, only]
        best = float(column @ ones / max(column @ column, 1e-300))
        alpha, beta = (best, 0.0) if only == 0 else (0.0, best)
    return float(alpha), float(beta)
