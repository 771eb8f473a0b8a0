r"""Is Compression.auto() slower than not using it, or than what it could have chosen? Its search included.

    mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 python -m benchmarks.auto.steps
    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- python -m benchmarks.auto.steps --window 5

One job trains a model by each kind, in turns: a round is a window of each. The ratio is the seconds of all windows of a
kind to those of auto(), from its first step on but for the very first one, in which ranks connect and measure; the last
half of all rounds by itself says what it chose. Horovod's second dense exchange is the noise.
"""

from __future__ import annotations

import argparse
import itertools
import os
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HVD_COMPRESS_HOROVOD_NICENESS"] = "0"  # Horovod's own method shares the process

import torch

import hvd_compress.torch as hvd
from benchmarks.frame.page import ms, table
from benchmarks.frame.ranks import say
from benchmarks.frame.turns import rounds
from benchmarks.models import MODELS

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
TITLES = ("model", "kind", "ms a step", "auto / kind, all", "in the last half")


class Training:
    """A model of one kind."""

    def __init__(self, model: str, kind: str) -> None:
        torch.manual_seed(1)
        self.model = MODELS[model][0]()
        sgd = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        named = self.model.named_parameters()
        self.optimizer: Any = hvd.DistributedOptimizer(sgd, named_parameters=named, compression=KINDS[kind]())
        self.data = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step(self) -> None:
        images, labels = self.data
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()


def compare(model: str, kinds: list[str], count: int, length: int) -> str:
    """Return the rows of a model, and why its buckets travel as they do by auto(), the first kind."""
    trainings = {kind: Training(model, kind) for kind in kinds}
    for training in trainings.values():
        training.step()
    steps = [training.step for training in trainings.values()]
    taken = dict(zip(kinds, zip(*itertools.islice(rounds(steps, length), count), strict=True), strict=True))
    own, rows = taken["auto"], []
    for kind, each in taken.items():
        late = median([a / b for a, b in zip(own[count // 2 :], each[count // 2 :], strict=True)])
        rows.append([model, kind, ms(each), f"{sum(own) / sum(each):.3f}", f"{late:.3f}"])
    reasons = dict.fromkeys(d.reason for d in hvd.of(trainings["auto"].optimizer).decisions.values())
    return f"{table(TITLES, rows, words=2)}\n\n{model}: {' / '.join(reasons)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each kind")
    parser.add_argument("--window", type=int, default=10, help="steps of one")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    count = asked.steps // asked.window
    say(f"{hvd.size()} ranks, {count} rounds of {asked.window} steps, torch {torch.__version__}\n")
    for model in asked.models:
        say(compare(model, list(dict.fromkeys(["auto", *asked.kinds])), count, asked.window))


if __name__ == "__main__":
    main()
