"""What all benchmarks share: how many threads work, and how a call is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

PAUSE_S = 0.01
"""Before each call with several threads: those of torch spin for some milliseconds after they have worked, and take a
core from whatever follows, unless that is another of torch's own kernels."""


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
