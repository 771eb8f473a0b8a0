"""Does PowerSGD train as torch's own hook does, and how long is a step of each? Over gloo, 4 ranks.

    python -m benchmarks.ddp.powersgd loss
    python -m benchmarks.ddp.powersgd time

Both have the same rank, first compressed step (2, torch's least) and model, and one bucket: over several, torch's hook
blocks both threads of gloo in its callbacks, and the ranks wait for ever.
`loss`: the example's network on scikit-learn's digits, three seeds. A figure is the mean over seeds (and their range)
of the loss over an epoch, as the mean over ranks.
`time`: three DDP models in each job: two with torch's hook, one with hc.Compression.powersgd(). A round is a window of
each. The ratio is ours to torch's first, the noise torch's second to its first: medians over rounds, with 95 %
intervals by bootstrap. "ResNet-50" has the 161 parameters of ResNet-50 and random constants as gradients, so that its
step is the exchange.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from images.data import load_digits, rank_batches
from images.model import SmallConvNet
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from benchmarks.ddp.tables import peer_cells, peer_head
from benchmarks.frame.page import head, row
from benchmarks.frame.processes import run_job
from benchmarks.frame.turns import Step, in_turns

RANKS, START, BATCH = 4, 2, 16
ONE_BUCKET_MB = 200
KINDS = ("dense", "torch", "ours")
EPOCHS = (1, 2, 3, 4)
"""Those whose loss is shown."""
LR, MOMENTUM = 0.02, 0.9


def resnet50_shapes() -> Iterator[tuple[int, ...]]:
    """Yield the shapes of its 161 parameters, 25.6 million elements, in the order of torchvision's module."""

    def convolution(outputs: int, inputs: int, size: int) -> Iterator[tuple[int, ...]]:
        yield from ((outputs, inputs, size, size), (outputs,), (outputs,))

    yield from convolution(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from convolution(width, inputs, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, inputs, 1)
            inputs = 4 * width
    yield from ((1000, inputs), (1000,))


class _Given(torch.autograd.Function):
    """A loss whose gradient is given, at the cost of a copy."""

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        context.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return context.gradient, None


class ResNet50Shapes(nn.Module):
    """The parameters of ResNet-50, with constant gradients, others on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in resnet50_shapes())
        draw = torch.Generator().manual_seed(dist.get_rank())
        self.gradients = [torch.randn(parameter.shape, generator=draw) for parameter in self.all]

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return torch.stack([_Given.apply(p, g) for p, g in zip(self.all, self.gradients, strict=True)]).sum()


def with_hook(module: nn.Module, kind: str, rank: int, seed: int = 1) -> DistributedDataParallel:
    model = DistributedDataParallel(module, bucket_cap_mb=ONE_BUCKET_MB)
    if kind == "torch":
        state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=START, random_seed=seed)
        model.register_comm_hook(state, powerSGD_hook)
    elif kind == "ours":
        hc.compress(model, hc.Compression.powersgd(rank, START))
    return model


def losses(kind: str, rank: int, seed: int) -> list[float]:
    """Train, and return the loss of each epoch."""
    torch.manual_seed(seed)
    model = with_hook(SmallConvNet(), kind, rank, seed)
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    data, found = load_digits().train, []
    for epoch in range(max(EPOCHS)):
        batches = rank_batches(len(data), BATCH, rank=dist.get_rank(), world_size=RANKS, seed=seed, epoch=epoch)
        total = torch.zeros(())
        for indices in batches:
            images, labels = data.batch(indices)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        found.append(float(total) / RANKS / len(batches))
    return found


def all_losses(rank: int, seeds: int) -> dict[str, list[list[float]]]:
    """Return the curves of each kind, one a seed."""
    return {kind: [losses(kind, rank, seed) for seed in range(1, seeds + 1)] for kind in KINDS}


def compare(name: str, rank: int, rounds: int) -> list[list[float]]:
    """Return seconds of a step in each round: torch's, torch's, ours."""
    kinds = [_step(name, kind, rank) for kind in ("torch", "torch", "ours")]
    return in_turns(kinds, rounds, MODELS[name][1])


MODELS = {"convnet, 1.2 M": (SmallConvNet, 10), "ResNet-50's shapes, 25.6 M": (ResNet50Shapes, 2)}
"""By name: what makes it, and the steps of a window."""


def _step(name: str, kind: str, rank: int) -> Step:
    torch.manual_seed(1)
    model = with_hook(MODELS[name][0](), kind, rank)
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step() -> None:
        model.zero_grad()
        scores = model(images)
        (nn.functional.cross_entropy(scores, labels) if scores.dim() else scores).backward()

    return step


def print_losses(rank: int, seeds: int) -> None:
    print(head(["hook", *(f"epoch {epoch}" for epoch in EPOCHS)]))
    for kind, found in run_job(RANKS, all_losses, rank, seeds).items():
        columns = [[curve[epoch - 1] for curve in found] for epoch in EPOCHS]
        shown = [f"{sum(c) / len(c):.4f} ({min(c):.4f} to {max(c):.4f})" for c in columns]
        print(row([kind, *shown]), flush=True)


def print_times(models: list[str], ranks: list[int], rounds: int) -> None:
    print(peer_head(["model", "rank of the approximation"], "torch's", "ours"))
    for name in models:
        for rank in ranks:
            taken = run_job(RANKS, compare, name, rank, rounds)
            print(row([name, rank, *peer_cells(taken)]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loss", "time"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=42)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rank", type=int, nargs="+", default=[1, 4], help="of the approximation")
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, {RANKS} ranks\n")
    if asked.what == "loss":
        print_losses(asked.rank[-1], asked.seeds)
    else:
        print_times(asked.models, asked.rank, asked.rounds)


if __name__ == "__main__":
    main()
