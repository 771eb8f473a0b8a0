"""What the tests of optimizers share: ranks as threads whose optimizer reduces, and steps of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from hvd_compress.compressors import Requantizer
from hvd_compress.compressors.momentum import INNER
from hvd_compress.engines.base import Engine
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.optim import DeMo, OneBitAdam
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import SHAPES, backward, gradient, make_parameters, remembered

Parameters = dict[str, torch.nn.Parameter]
Maker = Callable[[Iterable[torch.Tensor]], tuple[torch.optim.Optimizer, Request]]
"""Makes an optimizer and the compression that goes with it."""
THREE_BUCKETS = 600
"""HOROVOD_FUSION_THRESHOLD with which SHAPES are three buckets."""


def onebit_adam(
    warmup_steps: int = 3, weight_decay: float = 0.1, inner: Requantizer = INNER, collective: str = "auto"
) -> Maker:
    def make(parameters: Iterable[torch.Tensor]) -> tuple[torch.optim.Optimizer, Request]:
        optimizer = OneBitAdam(parameters, 0.01, (0.9, 0.99), weight_decay=weight_decay, warmup_steps=warmup_steps)
        return optimizer, optimizer.compression(inner=inner).by(collective=collective)

    return make


def demo(k: int = 4, chunk: int = 8, decay: float = 0.9) -> Maker:
    def make(parameters: Iterable[torch.Tensor]) -> tuple[torch.optim.Optimizer, Request]:
        optimizer = DeMo(parameters, 0.01, weight_decay=0.1)
        return optimizer, optimizer.compression(k, chunk, decay)

    return make


def distributed(engine: Engine, make: Maker, fusion_bytes: int = THREE_BUCKETS) -> tuple[Parameters, ReducingOptimizer]:
    """Return parameters and their optimizer, as hvd.DistributedOptimizer makes it."""
    parameters = make_parameters()
    optimizer, request = make(parameters.values())
    names = name_parameters(optimizer, parameters.items())
    named = {name: parameter for parameter, name in trainable(names).items()}
    reducer = Reducer(named, request, lambda: engine, ReduceOptions(), Settings(fusion_bytes, 60))
    return parameters, wrap(optimizer, names, reducer, 1, engine.rank, engine.world_size)


def train(parameters: Parameters, optimizer: ReducingOptimizer, rank: int, steps: range) -> None:
    for step in steps:
        backward(parameters, rank, step)
        optimizer.step()
        optimizer.zero_grad()


def flat(tensors: Mapping[str, torch.Tensor] | Parameters) -> torch.Tensor:
    return torch.cat([tensors[name].detach().reshape(-1) for name in SHAPES])


def momenta(optimizer: ReducingOptimizer) -> torch.Tensor:
    """Return the momentum that ranks share."""
    return flat(remembered(optimizer.state_dict()["hvd_compress"])["states"]["gradient:momentum"])


def gradients(size: int, step: int, name: str) -> list[torch.Tensor]:
    """Return the flat gradient of a parameter on each rank."""
    return [gradient(name, SHAPES[name], rank, step).reshape(-1) for rank in range(size)]
