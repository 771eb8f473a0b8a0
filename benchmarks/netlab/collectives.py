"""Collectives of Open MPI in the network lab, beside their floor on that network. As root:

python benchmarks/netlab/collectives.py [--hosts 4] [--latency 1ms] [--bandwidth 1gbit] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REPETITIONS = 9
SIZES = (4 << 10, 256 << 10, 4 << 20)


def floors(ranks: int, size: int, latency_s: float, bytes_per_s: float) -> dict[str, float]:
    """Seconds by the textbook: rounds times latency, and the bytes that the busiest rank sends over bandwidth."""
    rounds, transfer_s, share = math.ceil(math.log2(ranks)), size / bytes_per_s, (ranks - 1) / ranks
    return {
        "ring": 2 * (ranks - 1) * latency_s + 2 * share * transfer_s,
        "tree": 2 * rounds * (latency_s + transfer_s),
        "recursive_doubling": rounds * (latency_s + transfer_s),
        "rabenseifner": 2 * rounds * latency_s + 2 * share * transfer_s,
        "all-gather": rounds * latency_s + (ranks - 1) * transfer_s,
        "broadcast": rounds * latency_s + transfer_s,
    }


def measure() -> dict[str, list[float]]:
    """On every rank: median seconds of each collective at each size, the slowest rank's."""
    import numpy as np
    from mpi4py import MPI

    from hvd_compress.engines.mpi_algorithms import forced_communicators

    world = MPI.COMM_WORLD
    forced = forced_communicators(world)
    found: dict[str, list[float]] = {}
    for size in SIZES:
        send, receive = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        gathered = np.empty(size // 4 * world.size, np.float32)
        calls: dict[str, Callable[[], Any]] = {
            name: lambda comm=comm, send=send, receive=receive: comm.Allreduce(send, receive)
            for name, comm in forced.items()
        }
        calls["all-gather"] = lambda send=send, gathered=gathered: world.Allgather(send, gathered)
        calls["broadcast"] = lambda send=send: world.Bcast(send)
        for name, call in calls.items():
            found.setdefault(name, []).append(statistics.median(_times(world, call)))
    return found


def _times(world: Any, call: Callable[[], Any]) -> list[float]:
    from mpi4py import MPI

    call()
    times = []
    for _ in range(REPETITIONS):
        world.Barrier()
        begin = time.perf_counter()
        call()
        times.append(world.allreduce(time.perf_counter() - begin, op=MPI.MAX))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--latency", default="1ms")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help="used by this script itself")
    options = parser.parse_args()
    if options.rank:
        found = measure()
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 0:
            print(json.dumps(found))
        return
    from hvd_compress.netlab import Lab, Link

    with Lab(options.hosts, options.latency, options.bandwidth) as lab:
        job = lab.run([sys.executable, __file__, "--rank"], stdout=subprocess.PIPE, text=True)
        if job.returncode != 0:
            sys.exit(job.returncode)
        latest_s = lab.status().latest_s
    found = json.loads(job.stdout.splitlines()[-1])
    link = Link.parse(options.latency, options.bandwidth)
    if options.json:
        print(json.dumps({"found": found, "latest_s": latest_s}))
        return
    print(f"{options.hosts} hosts, {link}; ms, and times the floor; latest frame {1e3 * latest_s:.2f} ms\n")
    print("| collective | " + " | ".join(f"{size >> 10} KB" for size in SIZES) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    for name, times in found.items():
        floor = [floors(options.hosts, size, link.latency_s, link.bytes_per_s)[name] for size in SIZES]
        cells = [f"{1e3 * took:.1f} ({took / least:.2f})" for took, least in zip(times, floor, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
