"""Where the time of a step goes, and how many bytes it sends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TIMED = ("forward_s", "backward_s", "wait_s", "update_s")
_REPORTED = ("compress_s", "communicate_s", "decompress_s", "sent_bytes", "dense_bytes")


class StepMeter:
    """Averages, over the steps of an epoch, the seconds of each phase and the bytes sent by this rank.

    The compressions of hvd_compress report each step in `last_step`. Horovod's own do not: for them, what
    synchronize() blocked counts as communication, and the bytes are those of a ring allreduce.

    Gradients leave during the backward pass. So compress, communicate and decompress overlap with `backward_s`; what
    they add to the step is `wait_s`.

    Args:
        parameters: number of values in the gradient.
        value_bytes: bytes that Horovod's own compression sends for one value.
        world_size: number of ranks.
    """

    def __init__(self, parameters: int, value_bytes: int, world_size: int) -> None:
        ring = 2 * (world_size - 1) / world_size
        self._stock = {"sent_bytes": ring * value_bytes * parameters, "dense_bytes": ring * 4 * parameters}
        self._sums = dict.fromkeys(_TIMED + _REPORTED, 0.0)
        self._steps = 0
        self._waited_before = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the phase: one of forward_s, backward_s, wait_s, update_s."""
        start = time.perf_counter()
        yield
        self._sums[name] += time.perf_counter() - start

    def move(self, seconds: float, of: str, to: str) -> None:
        """Count seconds of one phase as those of another, which ran within it."""
        self._sums[of] -= seconds
        self._sums[to] += seconds

    def end_step(self, last_step: Any | None) -> None:
        """Count a step; `last_step` is the report about it, None where it gives none."""
        waited_s = self._sums["wait_s"] - self._waited_before
        report = vars(last_step) if last_step is not None else {"communicate_s": waited_s, **self._stock}
        for name in _REPORTED:
            self._sums[name] += report.get(name, 0.0)
        self._waited_before = self._sums["wait_s"]
        self._steps += 1

    def means(self) -> dict[str, float]:
        """Return the mean of each figure over the steps so far, and `step_s`, the sum of the timed phases."""
        means = {name: total / self._steps for name, total in self._sums.items()}
        return {**means, "step_s": sum(means[name] for name in _TIMED)}
