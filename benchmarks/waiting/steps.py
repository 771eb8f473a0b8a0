r"""What does a step take by the size of buckets, and by how many of them are in flight?

    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- \
        python benchmarks/waiting/steps.py int4:64:1 int4:2:1 int4:2:2

Each argument is a compression, the megabytes of a bucket, and HVD_COMPRESS_IN_FLIGHT. The transformer of
benchmarks/time_to_accuracy, in windows, in turns, in one job; ratios are to the first argument.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HVD_COMPRESS_ADAPT"] = "0"

import click
import torch

import hvd_compress.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "time_to_accuracy"))
from tasks import TASKS
from turns import in_turns, ms, ratio_cells

TASK = TASKS["language"]


class Training:
    """A replica whose gradients travel as asked for, or not at all."""

    def __init__(self, kind: str | None) -> None:
        torch.manual_seed(1)
        self.model, self.taken = TASK.model(), 0
        self.optimizer: Any = TASK.optimizer(self.model.parameters())
        if kind is not None:
            name, megabytes, in_flight = kind.split(":")
            os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(float(megabytes) * 1e6))
            os.environ["HVD_COMPRESS_IN_FLIGHT"] = in_flight
            compression = getattr(hvd.Compression, name)()
            named = self.model.named_parameters()
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, compression=compression)

    def step(self) -> None:
        self.optimizer.zero_grad()
        TASK.loss(self.model, TASK.batch(1, self.taken, hvd.rank())).backward()
        self.optimizer.step()
        self.taken += 1


def slowest(seconds: float) -> float:
    return float(hvd.allreduce(torch.tensor(seconds, dtype=torch.float64), op=hvd.Max, name="slowest"))


@click.command(help=__doc__)
@click.argument("kinds", nargs=-1, required=True)
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
def main(kinds: tuple[str, ...], rounds: int, window: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    trainings = [Training(kind).step for kind in (None, *kinds)]
    rows = in_turns(trainings, rounds, window, slowest)
    if hvd.rank() == 0:
        print("| kind | step, ms | of the first | 95 % |\n| --- | ---: | ---: | ---: |")
        for place, kind in enumerate(("no exchange", *kinds)):
            cells = ratio_cells([row[place] / row[1] for row in rows])
            print(f"| {kind} | {ms([row[place] for row in rows])} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
