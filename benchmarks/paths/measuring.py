"""What does it cost a job to measure what a fixed request leaves open? Milliseconds of its first step.

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python benchmarks/paths/measuring.py
    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- python benchmarks/paths/measuring.py

The second as root. A row is `prepare()` of a request's policy as the slowest rank sees it: the first one, when ranks
connect, and the median of those that follow, each with an empty HVD_COMPRESS_CACHE.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, PowerSGD, RandomK
from hvd_compress.engines.mpi_environment import launched_by_mpi, prepare
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.request import Request
from hvd_compress.settings import DEFAULT_CALIBRATION_S

REQUESTS = {
    "int4()": Request(BlockQuantizer(4)),
    "powersgd(4)": Request(PowerSGD(4)),
    "randomk(0.01)": Request(RandomK(0.01)),
}
LAYOUTS = [Layout.of((512, 512))] * 8
REPETITIONS = 9


def main() -> None:
    if not launched_by_mpi():
        sys.exit("ranks of an MPI job measure this: launch it as the docstring says")
    prepare()
    from hvd_compress.engines.mpi import MpiEngine

    engine = MpiEngine()
    engine.locate()
    if engine.rank == 0:
        print(f"{engine.world_size} ranks, {engine.library}\n")
        print("| request | first, ms | later, ms | chosen for 1 MiB |\n| --- | ---: | ---: | --- |")
    for name, request in REQUESTS.items():
        taken, chosen = [], Counter[str]()
        for _ in range(REPETITIONS):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["HVD_COMPRESS_CACHE"] = folder
                policy = FixedPolicy(request)
                policy.measuring_s = DEFAULT_CALIBRATION_S
                engine.allgather_json({})  # a common start
                start = time.perf_counter()
                policy.prepare(engine, LAYOUTS)
                taken.append(max(engine.allgather_json(time.perf_counter() - start)))
            chosen[str(policy.setup(0, LAYOUTS[:1], lambda *_: None)[0].path)] += 1
        if engine.rank == 0:
            paths = ", ".join(f"{path} ({times})" for path, times in chosen.items())
            later_s = statistics.median(taken[1:])
            print(f"| {name} | {1e3 * taken[0]:.0f} | {1e3 * later_s:.0f} | {paths} |", flush=True)


if __name__ == "__main__":
    main()
