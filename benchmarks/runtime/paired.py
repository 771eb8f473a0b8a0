"""Is this package's runtime slower than Horovod's? The same allreduces by both, over the same transport, in turns.

    python -m benchmarks.runtime.paired --pairs 12

A pair is a job of each, which of them is first changes from pair to pair: one that lives beside the other would lose to
Horovod's thread, which polls. Printed are medians, the median of the ratios of pairs with its 95 % interval by
bootstrap, as the noise the same of odd to even jobs of Horovod, and how much of a core a rank takes that does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import head, ms, ratio_cells, row
from benchmarks.frame.store import BUILD, append

MPIRUN = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-np"]
LAUNCHERS = {
    "MPI": {"horovod": MPIRUN, "torch": MPIRUN},
    "gloo": {"horovod": ["horovodrun", "--gloo", "-np"], "torch": ["torchrun", "--no-python", "--nproc-per-node"]},
}
LIMIT_S = 300.0


def job(transport: str, runtime: str, ranks: int, scale: float) -> dict[str, float]:
    """Return what rank 0 has measured, in seconds; "idle" is a share of a core."""
    command = [*LAUNCHERS[transport][runtime], str(ranks), sys.executable, "-m", "benchmarks.runtime.rank", str(scale)]
    environment = os.environ | {"HVD_COMPRESS_RUNTIME": runtime, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    found: dict[str, float] = json.loads(line[line.index("{") :])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--scale", type=float, default=1.0, help="of how often each is repeated within a job")
    parser.add_argument("--transports", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    asked = parser.parse_args()
    print(f"{told()}\n{asked.ranks} ranks, {asked.pairs} pairs of jobs\n")
    print(
        head(["allreduce of", "Horovod, ms", "ours, ms", "ours / Horovod", "95 % interval", "noise", "95 % interval"])
    )
    for transport in asked.transports:
        pairs = []
        for number in range(asked.pairs):
            order = ("horovod", "torch") if number % 2 else ("torch", "horovod")
            found = {runtime: job(transport, runtime, asked.ranks, asked.scale) for runtime in order}
            pairs.append((found["horovod"], found["torch"]))
        append(BUILD / "runtime" / "paired.jsonl", {"transport": transport, "ranks": asked.ranks, "pairs": pairs})
        for size in pairs[0][0]:
            both = [[each[size] for each in side] for side in zip(*pairs, strict=True)]
            if size == "idle":
                shares = [f"{100 * statistics.median(each):.2f}" for each in both]
                print(row([f"{transport}: % of a core, idle", *shares, "", "", "", ""]), flush=True)
                continue
            noise = [odd / even for odd, even in zip(both[0][::2], both[0][1::2], strict=False)]
            ratios = [ours / theirs for theirs, ours in zip(*both, strict=True)]
            cells = [*map(ms, both), *ratio_cells(ratios), *ratio_cells(noise)]
            print(row([f"{transport}: {size}", *cells]), flush=True)


if __name__ == "__main__":
    main()
