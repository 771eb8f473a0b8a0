"""The first half: runs of loss against steps, each kept in a file of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hvd_compress.ddp as hc
from benchmarks.frame.circumstances import circumstances
from benchmarks.frame.store import read, write
from benchmarks.time_to_accuracy.figures import EVERY, STEPS, loss_at
from benchmarks.time_to_accuracy.methods import BASELINE, DDP, LOCAL, METHODS, NONE
from benchmarks.time_to_accuracy.places import BUILD
from benchmarks.time_to_accuracy.tasks import TASKS
from benchmarks.time_to_accuracy.training import Enough, in_process, in_processes, in_turns

MOST = 480
"""A method that has not reached dense's loss after STEPS goes on until it has, but for so many steps at most."""

LONG, LONG_EVERY = 2000, 100
"""Steps of a long training, and how often its loss is measured: local steps lose early, and win late if at all."""

Tell = Callable[[int, float], None]


@dataclass(frozen=True)
class LossRun:
    """One training.

    Attributes:
        plan: says how a method that searches sent its gradients in the lab.
        is_long: whether it is of LONG steps, whatever loss is reached.
    """

    task: str
    method: str
    seed: int
    plan: Path | None = None
    is_long: bool = False

    @property
    def curve(self) -> str:
        """The name of what is trained."""
        return self.method if self.plan is None else self.plan.stem

    @property
    def file(self) -> Path:
        return BUILD / ("long" if self.is_long else "loss") / f"{self.task}-{self.curve}-seed{self.seed}.json"

    @property
    def asked(self) -> str:
        """What is asked for, in words: a run of something else does not count."""
        method = METHODS[self.method]
        if self.plan is not None:
            return f"{TASKS[self.task].setting}: {self.plan.read_text()}"
        how = method.label if method.front_end == DDP else repr(method.build(hc.Compression))
        by = f", by {method.optimizer([torch.nn.Parameter(torch.zeros(1))])!r}" if method.optimizer else ""
        return f"{TASKS[self.task].setting}: {how}{by}"

    def finished(self, most: int = MOST) -> dict[str, Any] | None:
        """Return what an earlier run found, if it asked for the same and went on for long enough."""
        found = read(self.file)
        return found if found and found["asked"] == self.asked and found["most"] >= most else None

    def train(self, tell: Tell, most: int = MOST) -> dict[str, Any]:
        """Train, and return and keep what was found.

        Unless it is long, dense of the same seed must have been trained before.
        """
        method, start = METHODS[self.method], time.monotonic()
        enough = Enough(LONG, LONG_EVERY) if self.is_long else Enough(STEPS + EVERY, EVERY)
        if self.method != BASELINE and not self.is_long:
            dense = LossRun(self.task, BASELINE, self.seed).finished()
            assert dense is not None, "dense comes first"
            enough = Enough(STEPS + EVERY, EVERY, most, loss_at(dense["losses"], STEPS))
        if method.front_end == DDP:
            losses = in_processes(method, self.task, self.seed, enough)
        elif method.front_end == LOCAL:
            losses = in_turns(TASKS[self.task], method.build(hc.Compression), self.seed, enough, tell)
        else:
            request = method.build(hc.Compression) if self.plan is None else hc.Compression.plan(self.plan)
            losses = in_process(TASKS[self.task], request, self.seed, enough, tell, method.optimizer)
        found = {
            **{"task": self.task, "method": self.method, "curve": self.curve, "seed": self.seed, "asked": self.asked},
            **{"most": MOST if self.method == BASELINE else most, "losses": losses},
            **{"seconds": round(time.monotonic() - start, 1), "circumstances": circumstances()},
        }
        write(self.file, found)
        return found


def wanted(tasks: Sequence[str], methods: Sequence[str], seeds: Sequence[int], are_long: bool = False) -> list[LossRun]:
    """Return the runs that the curves of some methods take, in the order of seeds; dense is the first of each."""
    curves = [METHODS[name].trained_as for name in methods if METHODS[name].front_end != NONE]
    runs = []
    for seed in seeds:
        for task in tasks:
            for name in dict.fromkeys([BASELINE, *curves]):
                plans = sorted((BUILD / "plans" / task).glob(f"{name}-*.json")) if METHODS[name].searches else [None]
                runs += [LossRun(task, name, seed, plan, are_long) for plan in plans]
    return runs
