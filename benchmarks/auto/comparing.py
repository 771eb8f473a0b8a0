"""One rank of benchmarks/auto/networks.py: trains a task by auto() and by each arm, in turns.

Rank 0 appends a line to a file: the seconds of every window, and what auto() chose.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import torch
import torch.distributed as dist

import hvd_compress.torch as hvd
from benchmarks.time_to_accuracy.job import PORT, Replica, append, reasons, say
from benchmarks.time_to_accuracy.methods import HOROVOD, OURS_IN_DDP, Method
from benchmarks.time_to_accuracy.tasks import TASKS
from benchmarks.turns import order
from hvd_compress.netlab.network import address

FRONT_ENDS = {"horovod": HOROVOD, "ddp": OURS_IN_DDP}


def main() -> None:
    wanted = json.loads(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address(1)}:{PORT}", rank=hvd.rank(), world_size=hvd.size())
    compare(wanted)
    dist.barrier()
    dist.destroy_process_group()
    hvd.shutdown()


def compare(wanted: dict[str, Any]) -> None:
    """Train windows of some steps by each in turns. The first step of each connects ranks, and is told apart."""
    front_end, names = FRONT_ENDS[wanted["front_end"]], ["auto", *wanted["arms"]]
    task = TASKS[wanted["task"]]
    replicas = {name: Replica(task, _method(name, front_end)) for name in names}
    first = {name: replica.timed_steps() for name, replica in replicas.items()}
    windows: dict[str, list[float]] = {name: [] for name in names}
    for number in range(wanted["rounds"]):
        for place in order(len(names), number):
            name = names[place]
            windows[name].append(round(replicas[name].timed_steps(wanted["steps"]) * wanted["steps"], 4))
        say(f"  round {number + 1} of {wanted['rounds']}: " + ", ".join(f"{n} {windows[n][-1]:.2f}" for n in names))
    append(wanted, {**wanted, "first": first, "windows": windows, "reasons": reasons(replicas["auto"])})


def _method(name: str, front_end: str) -> Method:
    return Method(name, name, lambda c: getattr(c, name)(), front_end, searches=name == "auto")


if __name__ == "__main__":
    main()
