"""Programs that put something of each rank's own on the weights while gradients are computed are no parted replicas."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, flat, loss_of, make_model

STEPS = 9


def test_two_passes_and_noise_of_each_ranks_own() -> None:
    run_ranks(train, ranks=2, HVD_COMPRESS_CHECK_EVERY="2")


def train(rank: int) -> None:
    for name, step in {"sam": sam, "noise": noise}.items():
        found = {}
        for compression in (None, hc.Compression.dense(), hc.Compression.int8()):
            ddp = DistributedDataParallel(make_model())
            if compression is not None:
                hc.compress(ddp, compression)
            sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
            for number in range(STEPS):
                step(ddp, sgd, rank, number)
            check_ranks_equal(ddp, name)
            found[str(compression)] = flat(ddp)
        plain, dense, int8 = found.values()
        assert torch.equal(dense, plain), name
        assert 0 < (int8 - plain).norm() < 0.05 * plain.norm(), name


Step = Callable[[DistributedDataParallel, torch.optim.Optimizer, int, int], None]


def sam(ddp: DistributedDataParallel, sgd: torch.optim.Optimizer, rank: int, step: int) -> None:
    """Sharpness-aware minimization: up the gradient of this rank alone, then down that of all from there."""
    sgd.zero_grad()
    with ddp.no_sync():
        loss_of(ddp, rank, step).backward()
    kept = [parameter.detach().clone() for parameter in ddp.parameters()]
    with torch.no_grad():
        norm = torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()]).norm()
        for parameter in ddp.parameters():
            parameter.add_(parameter.grad, alpha=0.05 / norm)
    sgd.zero_grad()
    loss_of(ddp, rank, step).backward()
    restore(ddp, kept)
    sgd.step()


def noise(ddp: DistributedDataParallel, sgd: torch.optim.Optimizer, rank: int, step: int) -> None:
    sgd.zero_grad()
    kept = [parameter.detach().clone() for parameter in ddp.parameters()]
    generator = torch.Generator().manual_seed(100 * rank + step)
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)
    loss_of(ddp, rank, step).backward()
    restore(ddp, kept)
    sgd.step()


def restore(ddp: DistributedDataParallel, kept: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, before in zip(ddp.parameters(), kept, strict=True):
            parameter.copy_(before)
