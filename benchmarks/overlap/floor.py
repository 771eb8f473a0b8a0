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

import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import click
import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
import hvd_compress.torch as hvd
from benchmarks.frame.circumstances import circumstances, told
from benchmarks.frame.page import head, ratio_cell, row
from benchmarks.frame.ranks import over_gloo, rank, say, slowest
from benchmarks.frame.store import BUILD, append
from benchmarks.frame.turns import in_turns
from benchmarks.time_to_accuracy.job import FRONT_ENDS
from benchmarks.time_to_accuracy.methods import DDP, METHODS, NONE, Method
from benchmarks.time_to_accuracy.tasks import TASKS, Task
from hvd_compress.netlab import Link

TITLES = (
    *("method", "buckets", "sent, MB", "wire, ms", "floor, ms", "step, ms", "of the floor (95 %)"),
    *("of the first (95 %)", "kernels, ms", "ranks, ms", "rest, ms"),
)
MOST_CHOOSING = 80
SENT = {"dense": 4, "fp16": 2}
"""Bytes of an element that others send, twice, around a ring, by the loss that they have."""


class Training:
    """This rank's part of a training by one method, with what its steps took."""

    def __init__(self, task: Task, method: Method) -> None:
        self.task, self.method, self.taken = task, method, 0
        torch.manual_seed(1)
        self.model = task.model()
        self.trained, self.optimizer, _ = FRONT_ENDS[method.front_end](
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

    @property
    def _by_hook(self) -> bool:
        return self.trained is not self.model

    @property
    def report(self) -> Any:
        if self.method.front_end in (NONE, DDP):
            return None
        if self._by_hook:
            return hc.of(self.trained).last_step
        return hvd.of(self.optimizer).last_step if hasattr(self.optimizer, "handle") else None  # else Horovod's own

    @property
    def decisions(self) -> list[Any]:
        """How buckets travel; none where others send them."""
        if self.report is None:
            return []
        return list((hc.of(self.trained).decisions if self._by_hook else hvd.of(self.optimizer).decisions).values())

    @property
    def choosing(self) -> bool:
        """Whether ways or cuts are still tried; the same on all ranks."""
        reducer = getattr(self.optimizer, "_reducer", None)
        cuts = self.report is not None and getattr(reducer, "_cutting", None) is not None
        return cuts or any(each.is_trial for each in self.decisions)

    def choose(self) -> None:
        """Step until what is chosen stands, and forget what that took."""
        self.step()
        while self.taken < 3 or (self.choosing and self.taken < MOST_CHOOSING):
            self.step()
        self.forward_s, self.backward_s, self.compress_s = [], [], []

    @property
    def sent_bytes(self) -> float:
        """What a rank puts on its line in a step."""
        if self.report is not None:
            return float(self.report.sent_bytes)
        size, numel = dist.get_world_size(), sum(p.numel() for p in self.model.parameters())
        return 2 * (size - 1) / size * numel * SENT.get(self.method.trained_as, 0)

    @property
    def trips(self) -> int:
        """Latencies that a step waits for at least: one, where all buckets travel by one all-gather."""
        if not self.sent_bytes:
            return 0
        decisions = self.decisions
        return 1 if decisions and all(each.collective == "allgather" for each in decisions) else 2

    @property
    def computes_s(self) -> float:
        return statistics.median(self.forward_s) + statistics.median(self.backward_s)


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
def main(latency: str, bandwidth: str, task: str, methods: str, rounds: int, window: int) -> None:
    hvd.init()
    link = Link.parse(latency, bandwidth)
    with over_gloo():
        trainings = [Training(TASKS[task], METHODS[name]) for name in ("alone", *methods.split(","))]
        for training in trainings:
            training.choose()
        taken = in_turns([training.step for training in trainings], rounds, window)
        backward_s = slowest(statistics.median(trainings[0].backward_s))
        alone_s = statistics.median(each[0] for each in taken)
        about = f"{hvd.size()} hosts, {link}, {task}"
        if rank() == 0:
            figures = {"about": about, "methods": [each.method.name for each in trainings], "rounds": taken}
            append(BUILD / "overlap" / "floor.jsonl", {**figures, "circumstances": circumstances()})
            say(f"{told()}\n{about}; {1e3 * alone_s:.1f} ms of computing, {1e3 * backward_s:.1f} backward\n")
        say(head(TITLES))
        for place, training in enumerate(trainings):
            say(row(cells(training, [(each[place], each[0], each[1]) for each in taken], link, backward_s)))


def cells(training: Training, taken: list[tuple[float, float, float]], link: Link, backward_s: float) -> list[str]:
    """Return a row of the table, on every rank.

    Args:
        taken: seconds of a step in each round, with those of computing alone and of the first method.
    """
    wire_s = training.sent_bytes / link.bytes_per_s
    exchange_s = max(0.0, wire_s - backward_s) + training.trips * link.latency_s
    step_s, alone_s, _ = (statistics.median(column) for column in zip(*taken, strict=True))
    computes = of_ranks(training.computes_s)
    kernels_s = statistics.median(training.compress_s) if training.compress_s else 0.0
    ranks_s = 0.0 if training.method.front_end == DDP else max(computes) - statistics.mean(computes)
    floor_s = alone_s + exchange_s
    floors = ratio_cell([own / (alone + exchange_s) for own, alone, _ in taken])
    firsts = ratio_cell([own / first for own, _, first in taken])
    numbers = [f"{1e3 * each:.1f}" for each in (wire_s, floor_s, step_s)]
    parts = [f"{1e3 * each:.1f}" for each in (kernels_s, ranks_s, step_s - floor_s - kernels_s - ranks_s)]
    buckets, sent = str(len(training.decisions) or ""), f"{1e-6 * training.sent_bytes:.2f}"
    return [training.method.label, buckets, sent, *numbers, floors, firsts, *parts]


if __name__ == "__main__":
    main()
