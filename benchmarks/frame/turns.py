"""Windows of steps of several kinds in turns: what slows the machine down does so for all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.frame.ranks import slowest, together
from hvd_compress.measuring import order

Step = Callable[[], object]
WARM_UP = 5


def in_turns(steps: Sequence[Step], count: int, length: int) -> list[list[float]]:
    """Return what `count` rounds took, after steps of each kind that do not count."""
    for step in steps:
        window(step, WARM_UP)
    return list(itertools.islice(rounds(steps, length), count))


def rounds(steps: Sequence[Step], length: int, before: int = 0) -> Iterator[list[float]]:
    """Yield for each round the seconds of a step of each kind, as the slowest rank sees it; there is no last round.

    A round is one window of `length` steps of each. Every kind comes at every place, and before and after each
    neighbour, equally often in `2 * len(steps)` rounds.
    """
    for number in itertools.count():
        taken = {kind: window(steps[kind], length, before) for kind in order(len(steps), number)}
        yield [taken[kind] for kind in range(len(steps))]


def window(step: Step, length: int = 1, before: int = 0) -> float:
    """Return the mean seconds of `length` steps, of the slowest rank. Ranks begin together.

    Args:
        before: steps before those, which do not count.
    """
    for _ in range(before):
        step()
    together()
    start_s = time.perf_counter()
    for _ in range(length):
        step()
    return slowest((time.perf_counter() - start_s) / length)
