r"""Is Compression.auto() slower than not using it, or than what it could have chosen? Its search included.

    mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 python -m benchmarks.auto.steps
    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- python -m benchmarks.auto.steps --window 5

One job trains a model by each kind, in turns: a round is a window of each. The ratio is the seconds of all windows of a
kind to those of auto(), from its first step on but for the very first one, in which ranks connect and measure; the last
half of all rounds by itself says what it chose. Horovod's second dense exchange is the noise.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HVD_COMPRESS_HOROVOD_NICENESS"] = "0"  # Horovod's own method shares the process

import torch

import hvd_compress.torch as hvd
from benchmarks.models import MODELS
from benchmarks.turns import order

BATCH = 16
KINDS = {
    "Horovod": lambda: hvd.Compression.none,
    "Horovod again": lambda: hvd.Compression.none,
    "dense": hvd.Compression.dense,
    "bf16": hvd.Compression.bf16,
    "int8": hvd.Compression.int8,
    "int4": hvd.Compression.int4,
    "auto": hvd.Compression.auto,
}


class Training:
    """A model of one kind, and what its windows took."""

    def __init__(self, model: str, kind: str) -> None:
        torch.manual_seed(1)
        self.model = MODELS[model][0]()
        sgd = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        named = self.model.named_parameters()
        self.optimizer: Any = hvd.DistributedOptimizer(sgd, named_parameters=named, compression=KINDS[kind]())
        self.data = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
        self.windows: list[float] = []

    def step(self) -> None:
        images, labels = self.data
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()

    def window(self, steps: int) -> None:
        slowest(0.0)
        start_s = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.windows.append(slowest(time.perf_counter() - start_s))


def slowest(seconds: float) -> float:
    return float(hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max, name="slowest"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each kind")
    parser.add_argument("--window", type=int, default=10, help="steps of one")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    rounds = asked.steps // asked.window
    rows = [f"{hvd.size()} ranks, {rounds} rounds of {asked.window} steps, torch {torch.__version__}\n"]
    rows += ["| model | kind | ms a step | auto / kind, all | in the last half |", "| --- | --- | ---: | ---: | ---: |"]
    for model in asked.models:
        kinds = list(dict.fromkeys(["auto", *asked.kinds]))
        trainings = {kind: Training(model, kind) for kind in kinds}
        for training in trainings.values():
            training.step()
        for number in range(rounds):
            for place in order(len(kinds), number):
                trainings[kinds[place]].window(asked.window)
        own = trainings["auto"].windows
        for kind, training in trainings.items():
            taken, half = training.windows, rounds // 2
            late = median([a / b for a, b in zip(own[half:], taken[half:], strict=True)])
            ms = 1e3 * median(taken) / asked.window
            rows.append(f"| {model} | {kind} | {ms:.2f} | {sum(own) / sum(taken):.3f} | {late:.3f} |")
        reasons = dict.fromkeys(d.reason for d in trainings["auto"].optimizer.decisions.values())
        rows.append(f"\n{model}: {' / '.join(reasons)}\n")
    if hvd.rank() == 0:
        print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
