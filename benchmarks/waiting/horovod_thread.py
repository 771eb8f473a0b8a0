r"""What do Horovod's thread and ours take of the processor, and what does the niceness of Horovod's cost its own calls?

    hvd-compress netlab run --hosts 2 --own-cores --latency 1ms --bandwidth 1gbit -- \
        python benchmarks/waiting/horovod_thread.py none int4:64:1 int4:1:2 --niceness 10 --busy 1

For each kind, as in steps.py or "none", the milliseconds of a step, and for each thread of rank 0 how long it ran in a
step and how long it waited for a core. Then calls of hvd.allreduce, while so many processes compute on each host.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import torch
from steps import Training, slowest

import hvd_compress.torch as hvd
from hvd_compress.front.horovod.background import give_way

STEPS = 20
CALLS = (1_000, 400_000, 7_500_000)
"""Bytes."""


def running() -> dict[int, tuple[int, int]]:
    """Return by thread the nanoseconds that it ran, and waited for a core."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
        found[int(task.name)] = ran, waited
    return found


def threads(kind: str) -> None:
    training = Training(None if kind == "none" else kind)
    for _ in range(6):
        training.step()
    slowest(0.0)
    before, start_s = running(), time.perf_counter()
    for _ in range(STEPS):
        training.step()
    taken_s, after = (time.perf_counter() - start_s) / STEPS, running()
    if hvd.rank() == 0:
        print(f"{kind}: {1e3 * taken_s:.1f} ms a step", flush=True)
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        for thread, figures in after.items():
            ran, waited = (
                1e-6 * (now - then) / STEPS for now, then in zip(figures, before.get(thread, (0, 0)), strict=True)
            )
            if ran > 0.1:
                print(
                    f"  {names.get(thread, 'a library')}: ran {ran:.2f} ms, waited for a core {waited:.2f}", flush=True
                )


def calls(busy: int) -> None:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    for size in CALLS:
        tensor, taken = torch.ones(size // 4), []
        for _ in range(9):
            slowest(0.0)
            start_s = time.perf_counter()
            hvd.allreduce_(tensor, name=f"of {size}")
            taken.append(time.perf_counter() - start_s)
        if hvd.rank() == 0:
            print(f"hvd.allreduce of {size:,} bytes: {1e3 * statistics.median(taken[1:]):.1f} ms", flush=True)
    for other in others:
        other.kill()


@click.command(help=__doc__)
@click.argument("kinds", nargs=-1)
@click.option("--niceness", default=0, show_default=True, help="Of Horovod's threads.")
@click.option("--busy", default=0, show_default=True, help="Processes that compute on each host beside the calls.")
def main(kinds: tuple[str, ...], niceness: int, busy: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    give_way(niceness)
    for kind in kinds:
        threads(kind)
    calls(busy)


if __name__ == "__main__":
    main()
