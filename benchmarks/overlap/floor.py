r"""How far is a step from its floor, and what lies between?

    hvd-compress netlab run --hosts 2 --own-cores --latency 5ms --bandwidth 100mbit -- \
        python -m benchmarks.overlap.floor --latency 5ms --bandwidth 100mbit

A step of the tasks of time_to_accuracy by several methods, in windows, in turns, in one job, once each method has
chosen what it chooses. The floor is what a step computes, with the backward pass or the bytes over the bandwidth,
whichever is longer, and the latency of the last exchange. What lies above it is taken apart: kernels that the backward
pass does not hide are in it, ranks that wait for one another (the longest step until backward() returns, less the
mean), and the rest: threads, buckets that leave late, and what the line does not carry at full speed.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import click
import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
import hvd_compress.torch as hvd
from benchmarks.time_to_accuracy.job import FRONT_ENDS
from benchmarks.time_to_accuracy.methods import DDP, METHODS, NONE, Method
from benchmarks.time_to_accuracy.tasks import TASKS, Task
from benchmarks.turns import in_turns, median_with_interval
from hvd_compress.netlab import Link
from hvd_compress.netlab.network import INTERFACE, address

PORT = 29_500
MOST_CHOOSING = 80
SENT = {"dense": 4, "fp16": 2}
"""Bytes of an element that others send, twice, around a ring, by the loss that they have."""


class Training:
    """This rank's part of a training by one method, with what its steps took."""

    def __init__(self, task: Task, method: Method) -> None:
        self.task, self.method, self.taken = task, method, 0
        torch.manual_seed(1)
        self.model = task.model()
        self.trained, self.optimizer = FRONT_ENDS[method.front_end](
            self.model, method.optimizer or task.optimizer, method, None
        )
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []
        self.compress_s: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        batch = self.task.batch(1, self.taken, dist.get_rank())
        start_s = time.perf_counter()
        loss = self.task.loss(self.trained, batch)
        middle_s = time.perf_counter()
        loss.backward()
        end_s = time.perf_counter()
        self.optimizer.step()
        self.taken += 1
        self.forward_s.append(middle_s - start_s)
        self.backward_s.append(end_s - middle_s)
        report = self.report
        if report is not None:
            self.compress_s.append(report.compress_s + report.decompress_s)

    def forget(self) -> None:
        self.forward_s, self.backward_s, self.compress_s = [], [], []

    @property
    def report(self) -> Any:
        if self.method.front_end in (NONE, DDP):
            return None
        return (
            hc.last_step(self.trained) if self.trained is not self.model else getattr(self.optimizer, "last_step", None)
        )

    @property
    def choosing(self) -> bool:
        """Whether ways or cuts are still tried; the same on all ranks."""
        reducer = getattr(self.optimizer, "_reducer", None)
        if self.report is None:
            return False
        found = hc.decisions(self.trained) if self.trained is not self.model else self.optimizer.decisions
        return any(each.is_trial for each in found.values()) or getattr(reducer, "_cutting", None) is not None

    @property
    def sent_bytes(self) -> float:
        """What a rank puts on its line in a step."""
        if self.report is not None:
            return float(self.report.sent_bytes)
        size, numel = dist.get_world_size(), sum(p.numel() for p in self.model.parameters())
        return 2 * (size - 1) / size * numel * SENT.get(self.method.trained_as, 0)

    @property
    def buckets(self) -> int:
        found = (
            ()
            if self.report is None
            else hc.decisions(self.trained)
            if self.trained is not self.model
            else self.optimizer.decisions
        )
        return len(found)


def slowest(seconds: float) -> float:
    told = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def of_ranks(value: float) -> list[float]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


@click.command(help=__doc__)
@click.option("--latency", required=True, help="Of the lab, for the floor.")
@click.option("--bandwidth", required=True, help="Of the lab, for the floor.")
@click.option("--task", default="language", show_default=True, type=click.Choice(list(TASKS)))
@click.option("--methods", default="ddp,ddp-fp16,dense,bf16,int4,int4-ddp", show_default=True)
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
@click.option("--rows", type=click.Path(path_type=Path), help="A file to which each row of the table is added as JSON.")
def main(latency: str, bandwidth: str, task: str, methods: str, rounds: int, window: int, rows: Path | None) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    hvd.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{address(1)}:{PORT}", rank=hvd.rank(), world_size=hvd.size())
    trainings = [Training(TASKS[task], METHODS[name]) for name in ("alone", *methods.split(","))]
    for training in trainings:
        training.step()
        while training.taken < 3 or (training.choosing and training.taken < MOST_CHOOSING):
            training.step()
        training.forget()
    taken = in_turns([training.step for training in trainings], rounds, window, slowest)
    link, alone = Link.parse(latency, bandwidth), trainings[0]
    backward_s = slowest(statistics.median(alone.backward_s))
    alone_s = statistics.median(row[0] for row in taken)
    if hvd.rank() == 0:
        print(
            f"{hvd.size()} hosts, {link}, {task}; {1e3 * alone_s:.1f} ms of computing, {1e3 * backward_s:.1f} backward"
        )
        heads = (
            "method",
            "buckets",
            "sent, MB",
            "wire, ms",
            "floor, ms",
            "step, ms",
            "of the floor (95 %)",
            "of the first (95 %)",
        )
        print(f"| {' | '.join((*heads, 'kernels, ms', 'ranks, ms', 'rest, ms'))} |\n|" + " --- |" * 11)
    for place, training in enumerate(trainings):
        wire_s = training.sent_bytes / link.bytes_per_s
        trips = 0 if not wire_s else 1 if training.sent_bytes and _in_one_round(training) else 2
        floor_s = alone_s + max(0.0, wire_s - backward_s) + trips * link.latency_s
        floors = [row[place] / (row[0] + max(0.0, wire_s - backward_s) + trips * link.latency_s) for row in taken]
        computes = of_ranks(statistics.median(training.forward_s) + statistics.median(training.backward_s))
        kernels_s = statistics.median(training.compress_s) if training.compress_s else 0.0
        ranks_s = 0.0 if training.method.front_end == DDP else max(computes) - statistics.mean(computes)
        step_s = statistics.median(row[place] for row in taken)
        if hvd.rank() == 0:
            above = _cell(floors), _cell([row[place] / row[1] for row in taken])
            sent, rest_s = 1e-6 * training.sent_bytes, step_s - floor_s - kernels_s - ranks_s
            numbers = [f"{1e3 * each:.1f}" for each in (wire_s, floor_s, step_s)]
            parts = [f"{1e3 * each:.1f}" for each in (kernels_s, ranks_s, rest_s)]
            cells = training.method.label, str(training.buckets or ""), f"{sent:.2f}", *numbers, *above, *parts
            print(f"| {' | '.join(cells)} |", flush=True)
            if rows is not None and place:
                found = {"method": training.method.name, "buckets": training.buckets, "floors": floors}
                with rows.open("a") as file:
                    file.write(json.dumps({**found, "floor_s": floor_s, "step_s": step_s, "alone_s": alone_s}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _in_one_round(training: Training) -> bool:
    """Whether all buckets travel by one all-gather."""
    if training.report is None:
        return False
    found = hc.decisions(training.trained) if training.trained is not training.model else training.optimizer.decisions
    return all(each.scheme == "allgather" for each in found.values())


def _cell(ratios: list[float]) -> str:
    middle, low, high = median_with_interval(ratios)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
