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
from hvd_compress.policies import FixedPolicy
from hvd_compress.request.request import Request

T = TypeVar("T")


class Stopwatch:
    """Counts calls, and adds up their seconds."""

    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    def around(self, call: Callable[..., T]) -> Callable[..., T]:
        def timed(*arguments: Any) -> T:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.calls += 1
                self.seconds += time.perf_counter() - start

        return timed


def main() -> None:
    numel, buckets, pairs = map(int, sys.argv[1:4])
    computing_s = float(sys.argv[4])
    engine = begin()
    job = Job(engine, gradient(engine, numel), TopK(0.01), buckets)
    job.step()
    controller, steering, agreeing, taken = job.controller, Stopwatch(), Stopwatch(), Stopwatch()
    report = controller.report
    session = job.reducer.session
    hands, none = session.policy, FixedPolicy(Request(TopK(0.01)))
    hands.observe, hands.launched = steering.around(hands.observe), steering.around(hands.launched)
    hands.decide, hands.probes = steering.around(hands.decide), steering.around(hands.probes)
    controller.take = taken.around(controller.take)
    controller.report = lambda: agreeing.around(report())

    def block(over: Callable[[int], bool]) -> list[float]:
        """Take steps until it is over; return their seconds."""
        found: list[float] = []
        while not over(len(found)):
            start = time.perf_counter()
            time.sleep(computing_s)
            job.step()
            found.append(time.perf_counter() - start)
        return found

    def window() -> list[float]:
        """Take the steps from behind one comparison until behind the next."""
        before = taken.calls
        return block(lambda _: taken.calls > before)

    def without(steps: int) -> list[float]:
        session.policy = none
        found = block(lambda done: done == steps)
        session.policy = hands
        hands.resume()
        session.follow(session.step)
        return found

    measured = []
    for turn in range(4 * pairs):
        if len(measured) == pairs:
            break
        job.settle(100)
        begun = len(controller.history)
        steps = len(window())  # the first windows of a choice are short
        bare = without(steps) if turn % 2 else []
        before = steering.seconds, agreeing.seconds
        steered = window()
        if any(event.kind in ("begin", "choice") for event in list(controller.history)[begun:]):
            continue  # a drift, so that all is tried again, is no steady state; the same on all ranks
        spent = (steering.seconds - before[0], agreeing.seconds - before[1])
        bare = bare or without(steps)
        measured.append((*map(statistics.fmean, (steered, bare)), *(seconds / len(steered) for seconds in spent)))
    assert measured, "the network never kept still"
    with_s, without_s, steering_s, agreeing_s = map(statistics.fmean, zip(*measured, strict=True))
    ratios = sorted(steered / bare for steered, bare, *_ in measured)
    beside = round(0.82 * math.sqrt(len(ratios)))  # pairs: nine times of ten the median is no further off
    middle = len(ratios) // 2
    row = {
        "with_s": with_s,
        "without_s": without_s,
        "ratio": statistics.median(ratios),
        "ratio_from": ratios[max(0, middle - beside)],
        "ratio_to": ratios[min(len(ratios) - 1, middle + beside)],
        "steering_s": steering_s,
        "agreeing_s": agreeing_s,
        "choices": sorted({str(choice.candidate) for choice in controller.choices()}),
    }
    answer(engine, row)
    job.close()
    engine.close()


if __name__ == "__main__":
    main()
