r"""What does COVAP's filter cost in loss, and what of it: the gradient of zero, the residual's staleness, the steps?

    python benchmarks/schedules/loss.py --seed 1 covap held fading forgotten

Trains a task of benchmarks/time_to_accuracy with 4 ranks in process, without a network, by each variant, and prints the
loss after every 40 steps. 2 minutes a variant on 2 cores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "time_to_accuracy"))
from figures import EVERY, STEPS
from tasks import TASKS, Task
from training import Enough, in_process

from hvd_compress.compression import Compression
from hvd_compress.request.request import Request

INTERVAL = 4
FADING, FORGOTTEN = (0.5, 50, 0.1), (0.0, 1, 0.0)
"""Coefficients of error feedback: the paper's, and no feedback at all."""

VARIANTS: dict[str, tuple[Callable[[], Request], float]] = {
    "dense": (Compression.dense, 1.0),
    "covap": (lambda: Compression.covap(INTERVAL), 1.0),
    "held": (lambda: Compression.covap(INTERVAL, hold_unsent=True), 1.0),
    "held, twice the rate": (lambda: Compression.covap(INTERVAL, hold_unsent=True), 2.0),
    "fading": (lambda: Compression.covap(INTERVAL, feedback=FADING), 1.0),
    "forgotten": (lambda: Compression.covap(INTERVAL, feedback=FORGOTTEN), 1.0),
    "forgotten, twice the rate": (lambda: Compression.covap(INTERVAL, feedback=FORGOTTEN), 2.0),
    "forgotten, held": (lambda: Compression.covap(INTERVAL, feedback=FORGOTTEN, hold_unsent=True), 1.0),
    "interval 2": (lambda: Compression.covap(2), 1.0),
    "sent by int8": (lambda: Compression.covap(INTERVAL, sent=Compression.int8()), 1.0),
    "sent by int4": (lambda: Compression.covap(INTERVAL, sent=Compression.int4()), 1.0),
    "interval 2, sent by int8": (lambda: Compression.covap(2, sent=Compression.int8()), 1.0),
    "int8": (Compression.int8, 1.0),
    "int4": (Compression.int4, 1.0),
    "forgotten, interval 2": (lambda: Compression.covap(2, feedback=FORGOTTEN), 1.0),
}
"""By name: how gradients are exchanged, and the learning rate over the task's."""


def trained(task: Task, seed: int, request: Request, rate: float) -> dict[int, float]:
    """Return losses by step."""
    losses: dict[int, float] = {}

    def make(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = task.optimizer(parameters)
        for group in optimizer.param_groups:
            group["lr"] *= rate
        return optimizer

    in_process(task, request, seed, Enough(STEPS, EVERY), losses.__setitem__, make)
    return losses


@click.command(help=__doc__)
@click.option("--task", "task_name", type=click.Choice(list(TASKS)), default="language", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.argument("variants", nargs=-1, type=click.Choice(list(VARIANTS)))
def main(task_name: str, seed: int, variants: tuple[str, ...]) -> None:
    steps = range(40, STEPS + 1, 40)
    print(f"{task_name}, seed {seed}: loss after steps", *steps, sep="\t", flush=True)
    for name in variants or VARIANTS:
        make, rate = VARIANTS[name]
        losses = trained(TASKS[task_name], seed, make(), rate)
        print(name, *(f"{losses[step]:.3f}" for step in steps), sep="\t", flush=True)


if __name__ == "__main__":
    main()
