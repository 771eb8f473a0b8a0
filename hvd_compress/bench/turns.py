"""Paired timing: kinds come in turns, and ratios of each round have an interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

DRAWS = 2000
"""Of the bootstrap."""


def order(kinds: int, number: int) -> list[int]:
    """Return which kind comes when in a round: all rotations, there and back."""
    turned, back = number // 2 % kinds, number % 2
    order = [(kind + turned) % kinds for kind in range(kinds)]
    return order[::-1] if back else order


def median_with_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and its 95 % interval by bootstrap, from 2000 draws."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return statistics.median(ratios), medians[DRAWS // 40], medians[DRAWS - DRAWS // 40 - 1]
