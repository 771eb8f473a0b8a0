r"""What does a backward pass hide of the exchanges: is the profiled ratio the true one, and does COVAP hide the rest?

    hvd-compress netlab run --hosts 4 --latency 1ms --bandwidth 200mbit -- python benchmarks/schedules/hiding.py

A backward pass that takes its time without a processor, as on a GPU, beside a real network. True is the ratio of two
other runs: exchanges without a backward pass, and the backward pass of the slowest rank without exchanges. Steps are
compared in windows, in turns; the figures are those of one job. `--slow 1.3`: rank 1 computes so many times as long.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ["HOROVOD_FUSION_THRESHOLD"] = str(4 * 65_536)  # a bucket for each layer
os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

import hvd_compress.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from turns import in_turns, median_with_interval

NUMEL = 65_536
"""Of a layer."""
PROFILES = 5


class Waits(torch.autograd.Function):
    """A layer that costs nothing but time, in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds, ctx.shape = seconds, weight.shape
        return x + 0.0 * weight[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        if ctx.seconds:
            time.sleep(ctx.seconds)
        return gradient, gradient.expand(ctx.shape).contiguous(), None


class Training:
    """A model whose backward pass takes `pass_s` seconds on this rank; without a compression nothing is exchanged."""

    def __init__(self, layers: int, pass_s: float, compression: Any = None) -> None:
        self.weights = [torch.nn.Parameter(torch.zeros(NUMEL)) for _ in range(layers)]
        self.optimizer: Any = torch.optim.SGD(self.weights, lr=1e-3)
        self.pass_s = pass_s
        self.passes: list[float] = []
        if compression is not None:
            named = [(f"layer {number}", weight) for number, weight in enumerate(self.weights)]
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, compression=compression)

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.zeros((), requires_grad=True)
        for weight in self.weights:
            x = Waits.apply(x, weight, self.pass_s / len(self.weights))
        start_s = time.perf_counter()
        x.backward()
        self.passes.append(time.perf_counter() - start_s)
        self.optimizer.step()


def slowest(seconds: float) -> float:
    return float(hvd.allreduce(torch.tensor(seconds, dtype=torch.float64), op=hvd.Max, name="slowest"))


def say(*words: object) -> None:
    if hvd.rank() == 0:
        print(*words, sep="\t", flush=True)


def true_ratio(layers: int, communicate_s: float, pass_s: float) -> float:
    alone = Training(layers, pass_s)
    for _ in range(20):
        alone.step()
    return communicate_s / slowest(median(alone.passes))


def profiled(layers: int, pass_s: float) -> list[Any]:
    training, found = Training(layers, pass_s, hvd.Compression.dense()), []
    for _ in range(3):
        training.step()
    for _ in range(PROFILES):
        training.optimizer.profile_ccr()
        for _ in range(5):
            training.step()
        found.append(training.optimizer.ccr)
    return found


def floor(ratio: float, layers: int, interval: int) -> float:
    """Return what a step takes at least, over the backward pass: exchanges follow each other, each behind its layer."""
    taken = []
    for step in range(interval):
        clock = 0.0
        for layer in range(layers):
            if (layer + step) % interval == 0:
                clock = max(clock, (layer + 1) / layers) + ratio / layers
        taken.append(max(1.0, clock))
    return fmean(taken)


@click.command(help=__doc__)
@click.option("--slow", default=1.0, show_default=True)
@click.option("--layers", default=8, show_default=True, help="Each a bucket.")
@click.option("--ratios", default="2,3,4", show_default=True, help="True ones, about; dense steps are compared there.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--window", default=10, show_default=True, help="Steps.")
def main(slow: float, layers: int, ratios: str, rounds: int, window: int) -> None:
    hvd.init()
    factor = slow if hvd.rank() == 1 else 1.0
    kinds = [Training(layers, 0.0), Training(layers, 0.0, hvd.Compression.dense())]
    rows = in_turns([kind.step for kind in kinds], rounds, window, slowest)
    communicate_s = median(dense - none for none, dense in rows)
    say(f"{hvd.size()} ranks, exchanges of a step {1e3 * communicate_s:.2f} ms, rank 1 takes {slow:g} times as long")
    say(
        "true",
        "profiled",
        "over true",
        "naive",
        "over true",
        "lost, ms",
        "interval",
        "kind",
        "over none",
        "95 %",
        "floor",
    )
    for wanted in map(float, ratios.split(",")):
        pass_s = factor * communicate_s / wanted / slow
        true = true_ratio(layers, communicate_s, pass_s)
        found, dense = profiled(layers, pass_s), Training(layers, pass_s, hvd.Compression.dense())
        for each in found:
            figures = (each.ratio, each.ratio / true, each.naive, each.naive / true)
            say(f"{true:.3f}", *(f"{figure:.3f}" for figure in figures), f"{1e3 * each.lost_s:.0f}")
        covap, none = Training(layers, pass_s, hvd.Compression.covap("auto")), Training(layers, pass_s)
        for _ in range(20):
            covap.step()
        interval = int(covap.optimizer.controller.history.events[0].reason.rpartition("interval ")[2])
        rows = in_turns([each.step for each in (none, dense, covap)], rounds, window, slowest)
        for place, kind, every in ((1, "dense", 1), (2, "covap", interval)):
            ratio, low, high = median_with_interval([row[place] / row[0] for row in rows])
            cells = (every, kind, f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", f"{floor(true, layers, every):.3f}")
            say(f"{true:.3f}", *[""] * 5, *cells)


if __name__ == "__main__":
    main()
