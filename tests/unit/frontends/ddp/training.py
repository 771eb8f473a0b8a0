"""What the tests of DDP share: compressions, models, steps, and the same training with the reducer in DDP's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.compressors import BlockQuantizer
from hvd_compress.engines.torch_distributed import TorchEngine
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import SHAPES, gradient, make_parameters

DENSE = hc.Compression.dense()
BROUGHT = dict(brought("FIXED"))
"""By guests."""
REQUESTS = {
    "topk": hc.Compression.topk(0.05),
    "star": hc.Compression.topk(0.05).by(collective="star"),
    "var": hc.Compression.topk(0.05).by(collective="var"),
    "allgather": hc.Compression.topk(0.05).by(collective="allgather"),
    "layerwise": hc.Compression.topk(0.05, layerwise=True).by(collective="allgather"),
    "auto": hc.Compression.auto(),
    **dict(brought("ADAPTIVE")),
    "efsign": hc.Compression.efsign(),
    "powersgd": hc.Compression.powersgd(2),
    "int8": hc.Compression.int8().by(collective="alltoall-allgather"),
    "int4": hc.Compression.int4(),
    "int2": hc.Compression.int2(stochastic=True).by(collective="alltoall-allgather"),
    "onebit": hc.Compression.onebit(64).by(collective="alltoall-allgather"),
    "natural": hc.Compression.natural(),
    "momentum": hc.Compression.momentum(warmup_steps=1, inner=BlockQuantizer(4)),
    "demo": hc.Compression.demo(8, 16),
    "bf16": hc.Compression.bf16(),
    "fp16": hc.Compression.fp16,
    "half": hc.Compression.half(),
    "none": hc.Compression.none,
    "dense": hc.Compression.dense(),
    "per_bucket": hc.Compression.per_bucket(lambda each: hc.Compression.int4() if each.numel > 500 else DENSE),
    **BROUGHT,
}
"""All that can be asked for."""

LR = 0.1


def make_model(seed: int = 0) -> torch.nn.Module:
    """Four layers whose sizes fit no round number, the same on every rank."""
    torch.manual_seed(seed)
    sizes = (13, 41, 37, 29)
    layers = [(torch.nn.Linear(before, after), torch.nn.Tanh()) for before, after in pairwise(sizes)]
    return torch.nn.Sequential(*(part for layer in layers for part in layer), torch.nn.Linear(29, 3))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a rank, and their classes."""
    images = torch.randn(16, 13, generator=torch.Generator().manual_seed(1000 * rank + step))
    return images, images[:, :3].argmax(dim=1)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    images, labels = batch(rank, step)
    return functional.cross_entropy(model(images), labels)


@dataclass(frozen=True)
class Needing(PolicySettings):
    """A policy that DDP cannot carry out."""

    def make(self, request: Request, settings: Settings) -> object:
        raise AssertionError("it was refused")

    @property
    def needs_optimizer(self) -> str:
        return "a test says so"


class Given(torch.nn.Module):
    """A model whose gradients are those of tests.harness.gradient, times `factor`."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> None:
        super().__init__()
        for name, parameter in make_parameters(shapes).items():
            self.register_parameter(name.replace(".", "_"), parameter)

    def forward(self, rank: int, step: int, factor: float = 1.0) -> torch.Tensor:
        terms = [(p * gradient(n, tuple(p.shape), rank, step).to(p.dtype)).sum() for n, p in self.named_parameters()]
        return factor * torch.stack([term.float() for term in terms]).sum()


def compressed(model: torch.nn.Module, request: Request | str, **options: Any) -> DistributedDataParallel:
    """The model in DDP, in several buckets once they are cut anew."""
    ddp = DistributedDataParallel(model, **{"bucket_cap_mb": 0.004, **options})
    hc.compress(ddp, REQUESTS[request] if isinstance(request, str) else request)
    return ddp


def optimizer_of(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR, momentum=0.5)


def train(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    """Take plain training steps."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one tensor."""
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def check_ranks_equal(model: torch.nn.Module, step: object) -> None:
    """Every rank has the same parameters, to the bit."""
    mine = flat(model)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    assert mine.isfinite().all(), f"step {step}: parameters are not finite"
    assert all(torch.equal(mine, each) for each in gathered), f"step {step}: ranks differ"


class Twin:
    """Trains a model without DDP, over the reducer of DistributedOptimizer, in buckets that DDP has made."""

    def __init__(self, model: torch.nn.Module, request: Request | str, buckets: Sequence[Sequence[str]]) -> None:
        self.model, self._order = model, [name for names in buckets for name in names]
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        assert set(self._order) == set(self._parameters)
        self.reducer = Reducer(
            self._parameters,
            REQUESTS[request] if isinstance(request, str) else request,
            TorchEngine,
            ReduceOptions(groups=tuple(map(tuple, buckets))),
            Settings(fusion_threshold_bytes=0, timeout_s=30),
        )
        self._buckets = [tuple(names) for names in buckets]
        self._optimizer = optimizer_of(model)

    def step(self, *losses: torch.Tensor) -> None:
        """Sum the gradients of losses, perhaps of none, exchange the sum, and take a step."""
        self._optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        for name in self._order:
            if self._parameters[name].grad is None:
                self._parameters[name].grad = torch.zeros_like(self._parameters[name])
            self.reducer.ready(name)
        self.reducer.finish()
        assert list(self.reducer.handle.decisions) == self._buckets, (
            "buckets, and what lies in them, in the order of DDP"
        )
        self._optimizer.step()
