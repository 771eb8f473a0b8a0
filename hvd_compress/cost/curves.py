"""Time as a function of bytes, measured on the engine in use: what formulas cannot know of a library and a network."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hvd_compress.errors import ConfigError, UnsupportedError

Key = tuple[str, str]
"""Verb and algorithm."""


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes, at increasing sizes of at least 1 byte. Seconds are positive and never decrease.

    Between two sizes time is a straight line, as latency and bandwidth make it; beyond the first and the last one the
    line next to them goes on.
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
        """Return the time of `size` bytes, not below 0."""
        sizes, times = self.sizes, self.times
        if len(sizes) == 1:
            return times[0]
        right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        slope = (times[right] - times[right - 1]) / (sizes[right] - sizes[right - 1])
        return max(0.0, times[right - 1] + slope * (size - sizes[right - 1]))


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
