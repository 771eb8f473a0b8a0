"""What all measurements share: the machine in words, how many threads work, how a call is timed, and paired turns."""

from __future__ import annotations

import functools
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from hvd_compress import native

PAUSE_S = 0.01
"""Before each call with several threads: those of torch spin for some milliseconds after they have worked, and take a
core from whatever follows, unless that is another of torch's own kernels."""
DRAWS = 2000
"""Of the bootstrap."""


@functools.cache
def machine() -> str:
    """Return processor, vector instructions of the kernels, and torch's version."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return f"{model}, {native.simd_levels()[-1]}, torch {torch.__version__}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """Let torch and the kernels use so many threads in the block, whatever HVD_COMPRESS_NUM_THREADS says."""
    before, variable = torch.get_num_threads(), os.environ.pop("HVD_COMPRESS_NUM_THREADS", None)
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if variable is not None:
            os.environ["HVD_COMPRESS_NUM_THREADS"] = variable


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a call takes by the clock, after a pause where there are several threads."""
    _pause()
    start = clock()
    call()
    return clock() - start


def _pause() -> None:
    """Not by sleeping, from which a core would wake up slowly."""
    if torch.get_num_threads() == 1:
        return
    end = time.perf_counter() + PAUSE_S
    while time.perf_counter() < end:
        pass


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
