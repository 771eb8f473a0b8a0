r"""Is any compression a trap where the network is fast? A step of each beside Horovod's own, in one job of one machine.

    mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 \
        python benchmarks/steps/fast_network.py

A step is forward, backward, exchange and the optimizer's step. Each kind has its own model. A round is a window of each
kind; the ratio is its window to that of Horovod's own dense exchange in the same round: medians over rounds, with 95 %
intervals by bootstrap. Horovod's second dense exchange is the noise.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HVD_COMPRESS_ADAPT": "0", "HVD_COMPRESS_HOROVOD_NICENESS": "0"}

import torch

import hvd_compress.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from models import MODELS
from turns import Step, in_turns, ms, ratio_cells

BATCH = 16
BASE = "Horovod"
KINDS = {
    BASE: hvd.Compression.none,
    "Horovod again": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "dense": hvd.Compression.dense(),
    "bf16": hvd.Compression.bf16(),
    "int8": hvd.Compression.int8(),
    "int4": hvd.Compression.int4(),
}
"""What each kind passes to DistributedOptimizer. A new compression is one line."""


def compare(model: str, kinds: list[str], rounds: int) -> dict[str, list[float]]:
    """Return seconds of a step in each round, by kind."""
    rows = in_turns([_step(model, KINDS[kind]) for kind in kinds], rounds, MODELS[model][1], _slowest)
    return {kind: [row[number] for row in rows] for number, kind in enumerate(kinds)}


def _step(name: str, compression: Any) -> Step:
    torch.manual_seed(1)
    model = MODELS[name][0]()
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), compression=compression)
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _slowest(number: float) -> float:
    return float(hvd.allreduce(torch.tensor([number], dtype=torch.float64), op=hvd.Max, name="slowest"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    lines = [f"torch {torch.__version__}, {hvd.size()} ranks, {asked.rounds} rounds", ""]
    lines += ["| model | compression | ms | ratio | 95 % interval |", "| --- | --- | ---: | ---: | --- |"]
    for model in asked.models:
        seconds = compare(model, [BASE, *(kind for kind in asked.kinds if kind != BASE)], asked.rounds)
        for kind, own in seconds.items():
            ratios = [ours / base for ours, base in zip(own, seconds[BASE], strict=True)]
            lines.append(f"| {' | '.join([model, kind, ms(own), *ratio_cells(ratios)])} |")
    if hvd.rank() == 0:
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
