"""What the tests of whole steps share: a small model, an optimizer on any engine, gradients that ranks draw alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from hvd_compress import collectives
from hvd_compress.compressors import (
    BlockQuantizer,
    Cast,
    CompressedMomentum,
    Compressor,
    DeMo,
    DenseMomentum,
    EFSign,
    Natural,
    OneBit,
    PowerSGD,
    TopK,
)
from hvd_compress.devices import Lanes
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.policies import PlanFile, Warmup
from hvd_compress.policies.plan_schema import Plan, Treatment
from hvd_compress.policies.plan_settings import settings_of
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.brought import brought

SHAPES = {"first.weight": (7, 13), "first.bias": (7,), "odd": (1,), "second.weight": (40, 9), "second.bias": (40,)}
"""Parameters whose sizes fit no round number, one of them with a single element."""

COMPRESSORS: dict[str, Compressor] = {
    "topk": TopK(0.05),
    "lwtopk": TopK(0.05, layerwise=True),
    "topk-all": TopK(1.0),
    "efsign": EFSign(),
    "efsign-bucket": EFSign(layerwise=False),
    "powersgd": PowerSGD(2),
    "int8": BlockQuantizer(8),
    "int4": BlockQuantizer(4),
    "int4-stochastic": BlockQuantizer(4, stochastic=True),
    "int3": BlockQuantizer(3),
    "five-levels": BlockQuantizer(2.5, 128),
    "int2": BlockQuantizer(2, 128),
    "int4-coded": BlockQuantizer(4, coded=True),
    "five-levels-coded": BlockQuantizer(2.5, 128, stochastic=True, coded=True),
    "onebit": OneBit(64),
    "onebit-magnitude": OneBit(64, means=1),
    "natural": Natural(),
    "natural-feedback": Natural(error_feedback=True),
    "half": Cast(torch.float16),
    "powersgd-bf16": PowerSGD(2, factors="bf16"),
    "powersgd-int8": PowerSGD(2, factors="int8"),
    "topk-delta": TopK(0.05, index_coding="delta"),
    "topk-bf16": TopK(0.05, values="bf16"),
    "topk-int8-delta": TopK(0.05, values="int8", index_coding="delta"),
    "momentum": CompressedMomentum(0.9, BlockQuantizer(4)),
    "momentum-int8": CompressedMomentum(0.5, BlockQuantizer(8)),
    "momentum-onebit": CompressedMomentum(0.9, OneBit(64, means=1)),
    "momentum-dense": DenseMomentum(0.9),
    "demo": DeMo(4, 8),
    "bf16": Cast(torch.bfloat16),
    "dense": Cast(),
    **dict(brought("COMPRESSORS")),
}
"""The compressors of the conformance suite, with settings for buckets of some hundred elements. A line here, and all
of the suite runs with every collective that carries it (tests/conformance/cases.py)."""

FIRST_NAMES = tuple({type(compressor): name for name, compressor in reversed(COMPRESSORS.items())}.values())[::-1]
"""Of COMPRESSORS, the first of each class: what the first level of the tests takes."""

BIASED: dict[str, str] = dict(brought("BIASED"))
"""Of COMPRESSORS: those without error feedback that are not right on average, and why."""

OTHER_FEEDBACK: dict[str, str] = {"demo": "the residual is a momentum that decays"}
"""Of COMPRESSORS: those with error feedback whose residual is not gradient + residual - transmitted, and why; what
keeps a state in units of the gradient, such as a velocity, need not be named."""

NEVER_ZERO: dict[str, str] = dict(brought("NEVER_ZERO"))
"""Of COMPRESSORS: those whose result is not zero where all gradients are, and why."""

REQUESTS = {
    "topk-allgather": Request(TopK(0.05), "allgather"),
    "topk-star": Request(TopK(0.05), "star"),
    "topk-var": Request(TopK(0.05), "var"),
    "topk-auto": Request(TopK(0.05)),
    "lwtopk-allgather": Request(TopK(0.05, layerwise=True), "allgather"),
    "lwtopk-star": Request(TopK(0.05, layerwise=True), "star"),
    "topk-all": Request(TopK(1.0), "allgather"),
    "star-all": Request(TopK(1.0), "star"),
    "efsign": Request(EFSign()),
    "efsign-bucket": Request(EFSign(layerwise=False)),
    "powersgd": Request(PowerSGD(2)),
    "powersgd-allgather": Request(PowerSGD(2), "allgather"),
    "int8": Request(BlockQuantizer(8), "alltoall-allgather"),
    "int4": Request(BlockQuantizer(4)),
    "int4-stochastic": Request(BlockQuantizer(4, stochastic=True), "alltoall-allgather"),
    "int2": Request(BlockQuantizer(2, 128), "alltoall-allgather"),
    "int3-coded": Request(BlockQuantizer(3, coded=True), "alltoall-allgather"),
    "int8-gather": Request(BlockQuantizer(8), "gather-broadcast"),
    "bf16": Request(Cast(torch.bfloat16)),
    "topk-hierarchical": Request(TopK(0.05), "hierarchical"),
    "powersgd-hierarchical": Request(PowerSGD(2), "hierarchical"),
    "demo": Request(DeMo(4, 8)),
    "momentum": Request(CompressedMomentum(0.9, BlockQuantizer(4)), "alltoall-allgather"),
    "momentum-warmup": Request(CompressedMomentum(), policy=Warmup(DenseMomentum(), 2)),
    "dense": Request(Cast()),
    **dict(brought("REQUESTS")),
}
"""Requests that tests call by name; the conformance suite makes its own from COMPRESSORS."""

ANYWHERE = ("auto", "allgather", "allreduce", "star", "var", "artopk", "alltoall-allgather")
"""Collectives that every engine can do, without a gather or smaller groups."""


@cache
def asked_for(compressor: Compressor) -> tuple[str, ...]:
    """Return the collectives that a request may name, "auto" first: what loses nothing travels as the engine can."""

    def is_legal(collective: str) -> bool:
        try:
            return bool(Request(compressor, collective))
        except ConfigError:
            return False

    known = dict.fromkeys((*collectives.labels(), *compressor.own_collectives))
    return ("auto", *(collective for collective in known if is_legal(collective)))


def planned(compressor: Compressor, collective: str) -> Request:
    """Return what asks for a collective that only a plan can name, for all buckets alike."""
    treatment = Treatment(compressor=settings_of(compressor), collective=collective)
    return Request(Cast(), policy=PlanFile(f"{compressor} by {collective}", Plan(version=1, default=treatment)))


def chosen() -> dict[str, Request]:
    """Return one request for each compressor of the suite, the collectives in turn, for jobs of several processes.

    Every engine can do it.
    """
    found = {}
    for number, (name, compressor) in enumerate(COMPRESSORS.items()):
        anywhere = [collective for collective in asked_for(compressor) if collective in ANYWHERE]
        collective = anywhere[number % len(anywhere)]
        found[f"{name}-{collective}"] = Request(compressor, collective)
    return found


def place(engine: Engine, hosts: tuple[int, ...]) -> None:
    """Have the ranks of an in-process engine play to be on these hosts, by rank, instead of all on this one."""
    engine._hosts = hosts
    engine.capabilities = replace(engine.capabilities, hosts=hosts)


def alone() -> InProcessEngine:
    """Return the engine of a job with one rank."""
    return InProcessWorld(1).engine(0)


def make_parameters(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> dict[str, torch.nn.Parameter]:
    """The same values on every rank."""
    generator = torch.Generator().manual_seed(1)
    return {n: torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()}


def gradient(name: str, shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
    """A gradient that every rank can compute for every other."""
    seed = hash_name(name) * 1_000_003 + rank * 1009 + step
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Draw = Callable[[str, tuple[int, ...], int, int], torch.Tensor]
"""Gives the gradient of a parameter by its name and shape, of a rank in a step."""


def hash_name(name: str) -> int:
    return sum((position + 1) * ord(letter) for position, letter in enumerate(name))


def taken_momentum(request: Request, momentum: float) -> float:
    """Return the momentum of an optimizer, or none where the compression has one."""
    return 0.0 if request.compressor.refuses_momentum(momentum, adapts=False) else momentum


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter],
    request: Request,
    connect: Callable[[], Engine],
    rank: int,
    size: int,
    *,
    options: ReduceOptions | None = None,
    settings: Settings | None = None,
    passes: int = 1,
    lanes: Lanes | None = None,
    **sgd: float,
) -> ReducingOptimizer:
    """An SGD optimizer that reduces over the engine that `connect` creates."""
    momentum = taken_momentum(request, sgd.get("momentum", 0.0))
    optimizer = torch.optim.SGD(list(parameters.values()), **{"lr": 0.1, **sgd, "momentum": momentum})
    names = name_parameters(optimizer, parameters.items())
    settings = settings or Settings(fusion_threshold_bytes=600, timeout_s=60)  # three buckets with SHAPES
    named = {name: parameter for parameter, name in trainable(names).items()}
    reducer = Reducer(named, request, connect, options or ReduceOptions(), settings, lanes)
    return wrap(optimizer, names, reducer, passes, rank, size)


def on_engine(
    engine: Engine, request: Request, **arguments: object
) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
    """Parameters and their optimizer on an engine that exists already."""
    parameters = make_parameters()
    optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, **arguments)
    return parameters, optimizer


def backward(parameters: Mapping[str, torch.nn.Parameter], rank: int, step: int, draw: Draw = gradient) -> None:
    """Give every parameter its gradient through autograd, as a loss would."""
    loss = sum((p * draw(name, tuple(p.shape), rank, step).to(p.dtype)).sum() for name, p in parameters.items())
    loss.backward()


@torch.no_grad()
def use(parameters: Iterable[torch.Tensor]) -> None:
    """Do as an optimizer's step of size zero: the last result was used."""
    for parameter in parameters:
        parameter.mul_(1.0)


def flat_gradient(parameters: Mapping[str, torch.nn.Parameter]) -> torch.Tensor:
    """All gradients of a rank in one tensor."""
    return torch.cat([parameter.grad.reshape(-1).float() for parameter in parameters.values()])


def remembered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return residuals and states of the one rank whose checkpoint this is."""
    (own,) = state["ranks"].values()
    return own


def flat_residual(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter]) -> torch.Tensor:
    """All residuals of a rank in one tensor, zeros where there is none yet."""
    kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    return torch.cat([kept.get(name, torch.zeros(p.numel())).reshape(-1) for name, p in parameters.items()])


class Scaler:
    """As much of a torch.amp.GradScaler as the optimizer asks for."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale
