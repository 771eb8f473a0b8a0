"""One rank of networks.py: trains a task by auto() and by each arm, in turns.

Rank 0 tells the seconds of every window, and what auto() chose.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import hvd_compress.torch as hvd
from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import over_gloo, say
from benchmarks.frame.turns import rounds, window
from benchmarks.time_to_accuracy.job import Replica, reasons
from benchmarks.time_to_accuracy.methods import HOROVOD, METHODS, OURS_IN_DDP
from benchmarks.time_to_accuracy.tasks import TASKS

FRONT_ENDS = {"horovod": HOROVOD, "ddp": OURS_IN_DDP}


def main() -> None:
    hvd.init()
    with over_gloo():
        compare(asked())
    hvd.shutdown()


def compare(wanted: dict[str, Any]) -> None:
    """Train windows of some steps by each in turns. The first step of each connects ranks, and is told apart."""
    front_end, names = FRONT_ENDS[wanted["front_end"]], ["auto", *wanted["arms"]]
    task = TASKS[wanted["task"]]
    replicas = {name: Replica(task, replace(METHODS[name], front_end=front_end)) for name in names}
    first = {name: window(replica.step) for name, replica in replicas.items()}
    windows: dict[str, list[float]] = {name: [] for name in names}
    turns = rounds([replica.step for replica in replicas.values()], wanted["steps"])
    for number, taken in enumerate(islice(turns, wanted["rounds"]), start=1):
        for name, step_s in zip(names, taken, strict=True):
            windows[name].append(round(step_s * wanted["steps"], 4))
        say(f"  round {number} of {wanted['rounds']}: " + ", ".join(f"{n} {windows[n][-1]:.2f}" for n in names))
    tell(wanted, {**wanted, "first": first, "windows": windows, "reasons": reasons(replicas["auto"])})


if __name__ == "__main__":
    main()
