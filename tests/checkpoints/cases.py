"""What is trained for checkpoints: a small model, gradients from a table, compressions with different memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from hvd_compress.compression import Compression
from hvd_compress.optim import OneBitAdam
from hvd_compress.request.request import Request
from tests.brought import brought

RANKS = 2
STEPS = 8
"""Rows of the table of gradients, which are used again after these."""
AFTER = 3
"""Steps after the checkpoint whose results an archive holds."""
LR, MOMENTUM = 0.125, 0.5
"""Powers of two: products are exact, so it does not matter whether a machine rounds them before it adds."""


class Block(nn.Module):
    """A matrix and a vector, whose gradients are the arguments of forward()."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (self.weight * weight).sum() + (self.bias * bias).sum()


class Model(nn.Module):
    """Two blocks; two shards of the second one differ in size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(8, 6), Block(9, 8)

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a loss of which these are the gradients, by parameter name, to the bit."""
        first: torch.Tensor = self.first(gradients["first.weight"], gradients["first.bias"])
        second: torch.Tensor = self.second(gradients["second.weight"], gradients["second.bias"])
        return first + second


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


NUMEL = sum(parameter.numel() for parameter in Model().parameters())


class Gradients:
    """Those of all ranks and steps.

    Args:
        table: (RANKS, STEPS, NUMEL) int16, in units of 2^-10.
    """

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    @classmethod
    def drawn(cls) -> Gradients:
        """Return those of a new archive, which holds the table: another release of torch may draw others."""
        generator = torch.Generator().manual_seed(7)
        return cls(torch.randint(-4096, 4097, (RANKS, STEPS, NUMEL), generator=generator).to(torch.int16))

    def of(self, rank: int, step: int, factor: float = 1.0) -> dict[str, torch.Tensor]:
        """Return a rank's gradients in a step, by parameter name."""
        flat = self.table[rank, step % STEPS].float() * (factor / 1024)
        shapes = {name: tuple(each.shape) for name, each in Model().named_parameters()}
        parts = torch.split(flat, [torch.Size(shape).numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def sgd(parameters: Iterable[torch.Tensor], momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, momentum=momentum)


def one_bit_adam(parameters: Iterable[torch.Tensor]) -> OneBitAdam:
    return OneBitAdam(parameters, lr=LR, betas=(0.5, 0.75), warmup_steps=3)


@dataclass(frozen=True)
class Case:
    """A compression, and how it is trained.

    Attributes:
        compression: what the program asks for.
        steps: before the checkpoint.
        tolerance: by how much results after the checkpoint may differ, relative to the largest; 0: not in a bit. It is
            not 0 where torch computes matrix products (PowerSGD, DeMo) or the step of OneBitAdam:
            their last bits depend on vector instructions and the release of torch. What is remembered loads to the bit
            everywhere.
        adapts: whether the compression chooses while training.
        scale: a loss scale that is followed; 0 for none.
        cuts: whether the resumed training cuts buckets as the checkpoint says; its settings would make one of all.
        optimizer: of the program; SGD if None.
        feedback: whether a reduce-scatter remembers what it loses.
    """

    compression: Request
    steps: int = 5
    tolerance: float = 0.0
    adapts: bool = False
    scale: float = 0.0
    cuts: bool = False
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None
    feedback: bool = False


def _one_bit_adam_compression() -> Request:
    return one_bit_adam(Model().parameters()).compression()


NEAR = 1e-4
INT4_CHOSEN = Compression.auto("any", factors={"int4": 0.001})
"""Chooses int4 on any network: a choice that is lost changes results, as dense would not."""

DROP_IN = {
    "int4": Case(Compression.int4().by(collective="alltoall-allgather")),
    "int4-cut": Case(Compression.int4().by(collective="alltoall-allgather"), cuts=True),
    "int4-scaled": Case(Compression.int4().by(collective="alltoall-allgather"), scale=1024.0),
    "int8-stochastic": Case(Compression.int8(stochastic=True).by(collective="allgather")),
    "topk": Case(Compression.topk(0.1).by(collective="star")),
    "efsign": Case(Compression.efsign()),
    "onebit": Case(Compression.onebit(64).by(collective="alltoall-allgather")),
    "powersgd": Case(Compression.powersgd(2).by(collective="allreduce"), tolerance=NEAR),
    "momentum": Case(Compression.momentum(0.5, 2).by(collective="alltoall-allgather")),
    "onebit_adam": Case(_one_bit_adam_compression(), tolerance=NEAR, optimizer=one_bit_adam),
    "demo": Case(Compression.demo(4, 8, 0.5), tolerance=NEAR),
    "auto": Case(INT4_CHOSEN, steps=40, adapts=True),
    **{name: Case(**case) for name, case in brought("SAVED")},
}
"""By the optimizer of hvd_compress.torch, on ranks in one process."""

DDP = {
    "int4": Case(Compression.int4().by(collective="alltoall-allgather")),
    "topk": Case(Compression.topk(0.1).by(collective="star")),
    "powersgd": Case(Compression.powersgd(2).by(collective="allreduce"), tolerance=NEAR),
    "momentum": Case(Compression.momentum(0.5, 2).by(collective="alltoall-allgather")),
    "auto": Case(INT4_CHOSEN, steps=40, adapts=True),
    **{name: Case(**case) for name, case in brought("SAVED_BY_DDP")},
}
FSDP = {
    "shards-int4": Case(Compression.int4(), feedback=True),
    "shards-int8": Case(Compression.int8()),
    "replicas-topk": Case(Compression.topk(0.1).by(collective="star")),
    "replicas-powersgd": Case(Compression.powersgd(2).by(collective="allreduce"), tolerance=NEAR),
    "replicate-int4": Case(Compression.int4().by(collective="alltoall-allgather")),
}
"""Named by mesh: shards alone, replicas alone, and composable replicate() over DDP."""
