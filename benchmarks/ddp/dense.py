"""What does dense exchange cost over DDP's own? Windows of both in turns, in one job over gloo.

    python -m benchmarks.ddp.dense

A step is forward, backward and allreduce. Each job has three DDP models of one architecture: two stock ones and one
with hc.Compression.dense(). A round is a window of each. The ratio is dense to the first stock one, the noise the
second stock one to the first: medians over rounds, with 95 % intervals by bootstrap.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from benchmarks.ddp.tables import peer_cells, peer_head
from benchmarks.frame.page import row
from benchmarks.frame.processes import run_job
from benchmarks.frame.turns import Step, in_turns
from benchmarks.models import MODELS

BATCH = 16


def compare(name: str, rounds: int) -> list[list[float]]:
    """Return seconds of a step in each round: stock, stock, dense."""
    kinds = [_step(name, False), _step(name, False), _step(name, True)]
    return in_turns(kinds, rounds, MODELS[name][1])


def _step(name: str, hooked: bool) -> Step:
    torch.manual_seed(1)
    model = DistributedDataParallel(MODELS[name][0]())
    if hooked:
        hc.compress(model, hc.Compression.dense())
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=42)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, {asked.rounds} rounds\n")
    print(peer_head(["model", "ranks"], "DDP", "dense"))
    for name in asked.models:
        for ranks in asked.ranks:
            rounds = run_job(ranks, compare, name, asked.rounds)
            print(row([name, ranks, *peer_cells(rounds)]), flush=True)


if __name__ == "__main__":
    main()
