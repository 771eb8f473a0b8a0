"""One rank of benchmarks/controller/overhead.py."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from job import Job
from launching import answer, begin, gradient

from hvd_compress.compressors import TopK
from hvd_compress.controller.watch import LONGEST_IN_THE_OPEN, LONGEST_S

T = TypeVar("T")

WINDOWS = 3
"""Of the longest, at least, is a block."""


class Stopwatch:
    """Adds up the seconds of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., T]) -> Callable[..., T]:
        def timed(*arguments: Any) -> T:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def main() -> None:
    numel, buckets, blocks = map(int, sys.argv[1:4])
    computing_s = float(sys.argv[4])
    engine = begin()
    job = Job(engine, gradient(engine, numel), TopK(0.01), buckets)
    job.step()
    controller, steering, agreeing = job.controller, Stopwatch(), Stopwatch()
    report = controller.report
    hands = job.reducer.steering
    hands.after = steering.around(hands.after)
    controller.report = lambda: agreeing.around(report())

    def step() -> float:
        start = time.perf_counter()
        time.sleep(computing_s)
        job.step()
        return time.perf_counter() - start

    job.settle(100)
    step_s = job.agreed(statistics.median(step() for _ in range(9)))
    steps = WINDOWS * max(LONGEST_IN_THE_OPEN, math.ceil(LONGEST_S / step_s))
    pairs = []
    for _ in range(4 * blocks):
        if len(pairs) == blocks:
            break
        job.settle(100)
        begun, before = len(controller.history), (steering.seconds, agreeing.seconds)
        with_s = statistics.mean(step() for _ in range(steps))
        spent = (steering.seconds - before[0], agreeing.seconds - before[1])
        if any(event.kind in ("begin", "choice") for event in list(controller.history)[begun:]):
            continue  # a drift, so that all is tried again, is no steady state; the same on all ranks
        job.reducer.steering = None
        without_s = statistics.mean(step() for _ in range(steps))
        job.reducer.steering = hands
        hands.resume()
        pairs.append((with_s, without_s, with_s / without_s, *(seconds / steps for seconds in spent)))
    assert pairs, "the network never kept still"
    figures = (statistics.median(column) for column in zip(*pairs, strict=True))
    names = ("with_s", "without_s", "ratio", "steering_s", "agreeing_s")
    row = dict(zip(names, figures, strict=True))
    row["choices"] = sorted({str(choice.candidate) for choice in controller.choices()})
    answer(engine, row)
    job.close()
    engine.close()


if __name__ == "__main__":
    main()
