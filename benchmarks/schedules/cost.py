r"""What do COVAP's filter and error feedback cost by themselves, beside a dense step?

    mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 python benchmarks/schedules/cost.py

An interval so long that no step of a window sends anything leaves what a step costs that waits: the gradient joins
the residual, and the result is zero. Its step, less one of no exchange at all, over one of dense(); windows in turns,
in one job. `--elements 143667240` is a model of as many parameters, as VGG-19, in 16 tensors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

import hvd_compress.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from images.model import SmallConvNet
from turns import in_turns, median_with_interval, ms

NEVER = 997
"""An interval: with one shard, step 0 sends it, and no other one of the windows."""
BATCH, TENSORS = 64, 16


class Training:
    """The example's net, or tensors whose gradients are there at once; by a compression, or without any exchange."""

    def __init__(self, elements: int, compression: Any) -> None:
        torch.manual_seed(1)
        self.net = None if elements else SmallConvNet()
        lengths = [elements // TENSORS + (n < elements % TENSORS) for n in range(TENSORS)]
        weights = self.net.parameters() if self.net else [torch.nn.Parameter(torch.zeros(n)) for n in lengths]
        self.weights = list(weights)
        self.optimizer: Any = torch.optim.SGD(self.weights, lr=1e-3)
        if compression is not None:
            named = [(f"{number}", weight) for number, weight in enumerate(self.weights)]
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, compression=compression)
        self.data = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step(self) -> None:
        self.optimizer.zero_grad()
        if self.net is not None:
            torch.nn.functional.cross_entropy(self.net(self.data[0]), self.data[1]).backward()
        else:
            sum(weight.sum() for weight in self.weights).backward()
        self.optimizer.step()


def slowest(seconds: float) -> float:
    return float(hvd.allreduce(torch.tensor(seconds, dtype=torch.float64), op=hvd.Max, name="slowest"))


@click.command(help=__doc__)
@click.option("--elements", default=0, show_default=True, help="0: the example's net.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--window", default=20, show_default=True, help="Steps.")
def main(elements: int, rounds: int, window: int) -> None:
    hvd.init()
    compressions = (None, hvd.Compression.dense(), hvd.Compression.covap(NEVER, shard=False))
    kinds = [Training(elements, compression) for compression in compressions]
    rows = in_turns([kind.step for kind in kinds], rounds, window, slowest)
    own, low, high = median_with_interval([(waits - none) / dense for none, dense, waits in rows])
    if hvd.rank() == 0:
        none, dense, waits = zip(*rows, strict=True)
        print(f"{sum(weight.numel() for weight in kinds[0].weights):,} elements, {hvd.size()} ranks: no exchange")
        print(f"{ms(none)} ms, dense {ms(dense)} ms, nothing is sent {ms(waits)} ms a step; the filter's own cost is")
        print(f"{own:.4f} of a dense step, 95 % {low:.4f} to {high:.4f}", flush=True)


if __name__ == "__main__":
    main()
