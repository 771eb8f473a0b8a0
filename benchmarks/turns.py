"""What programs that compare steps share: windows of each kind in turns, and ratios with their intervals."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from hvd_compress.bench.turns import median_with_interval, order

Step = Callable[[], None]
Slowest = Callable[[float], float]
"""Returns the largest of all ranks' numbers, on every rank; none goes on before all have come."""


def in_turns(steps: Sequence[Step], rounds: int, length: int, slowest: Slowest) -> list[list[float]]:
    """Return for each round the seconds of a step of each kind, as the slowest rank sees it.

    A round is one window of `length` steps of each. Every kind comes at every place, and before and after each
    neighbour, equally often in `2 * len(steps)` rounds.
    """
    for step in steps:
        _window(step, 5, slowest)
    rows = []
    for number in range(rounds):
        taken = {kind: _window(steps[kind], length, slowest) for kind in order(len(steps), number)}
        rows.append([taken[kind] for kind in range(len(steps))])
    return rows


def _window(step: Step, length: int, slowest: Slowest) -> float:
    slowest(0.0)
    start_s = time.perf_counter()
    for _ in range(length):
        step()
    return slowest((time.perf_counter() - start_s) / length)


def ratio_cells(ratios: Sequence[float]) -> list[str]:
    """Return the cells of a table for the ratios of all rounds: their median, and its interval."""
    ratio, low, high = median_with_interval(ratios)
    return [f"{ratio:.3f}", f"{low:.3f} to {high:.3f}"]


def ms(seconds: Sequence[float]) -> str:
    """Return the median in milliseconds."""
    return f"{1e3 * statistics.median(seconds):.2f}"
