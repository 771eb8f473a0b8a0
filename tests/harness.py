"""What the tests of whole steps share: a small model, an optimizer on any engine, gradients that ranks draw alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from hvd_compress import schemes
from hvd_compress.compressors import (
    DGC,
    QSGD,
    BlockQuantizer,
    Cast,
    EFSign,
    MSTopK,
    PowerSGD,
    RandomK,
    Sparsifier,
    Threshold,
    TopK,
)
from hvd_compress.decision import Request
from hvd_compress.devices import lane_for
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld
from hvd_compress.optimizer import ReducingOptimizer, name_parameters, trainable, wrap
from hvd_compress.reducer import LaneMaker, ReduceOptions, Reducer
from hvd_compress.settings import Settings

SHAPES = {"first.weight": (7, 13), "first.bias": (7,), "odd": (1,), "second.weight": (40, 9), "second.bias": (40,)}
"""Parameters whose sizes fit no round number, one of them with a single element."""

REQUESTS = {
    "topk-allgather": Request(TopK(0.05), "allgather"),
    "topk-star": Request(TopK(0.05), "star"),
    "topk-var": Request(TopK(0.05), "var"),
    "topk-auto": Request(TopK(0.05)),
    "lwtopk-allgather": Request(TopK(0.05, layerwise=True), "allgather"),
    "lwtopk-star": Request(TopK(0.05, layerwise=True), "star"),
    "topk-all": Request(TopK(1.0), "allgather"),
    "star-all": Request(TopK(1.0), "star"),
    "mstopk-star": Request(MSTopK(0.05), "star"),
    "dgc": Request(DGC(0.05)),
    "threshold": Request(Threshold(1.5)),
    "randomk": Request(RandomK(0.05), "allreduce"),
    "randomk-allgather": Request(RandomK(0.05, error_feedback=False), "allgather"),
    "efsign": Request(EFSign()),
    "efsign-bucket": Request(EFSign(layerwise=False)),
    "qsgd": Request(QSGD(4)),
    "powersgd": Request(PowerSGD(2)),
    "powersgd-allgather": Request(PowerSGD(2), "allgather"),
    "int8": Request(BlockQuantizer(8), "alltoall-allgather"),
    "int4": Request(BlockQuantizer(4)),
    "int4-stochastic": Request(BlockQuantizer(4, stochastic=True), "alltoall-allgather"),
    "int2": Request(BlockQuantizer(2, 128), "alltoall-allgather"),
    "int8-gather": Request(BlockQuantizer(8), "gather-broadcast"),
    "bf16": Request(Cast(torch.bfloat16)),
    "dense": Request(Cast()),
    "topk-hierarchical": Request(TopK(0.05), "hierarchical"),
    "powersgd-hierarchical": Request(PowerSGD(2), "hierarchical"),
    "efsign-within": Request(EFSign(), "hierarchical-within"),
    "int4-both": Request(BlockQuantizer(4), "hierarchical-both"),
    "qsgd-both": Request(QSGD(4), "hierarchical-both"),
    "topk-hitopk": Request(TopK(0.05), "hitopk"),
    "topk-server": Request(TopK(0.05), "parameter-server"),
    "dense-server": Request(Cast(), "parameter-server"),
}
"""Every compressor, and each kind of them with every scheme that carries it."""

ANYWHERE = tuple(
    name
    for name, request in REQUESTS.items()
    if request.scheme != "gather-broadcast" and not schemes.by_name(request.scheme)
)
"""Over engines without a gather or smaller groups, too."""

SPARSIFIERS = tuple(
    name
    for name, request in REQUESTS.items()
    if isinstance(request.compressor, Sparsifier | RandomK)
    and request.compressor.error_feedback
    and name not in ("dgc", "topk-hierarchical", "topk-hitopk")
)
"""What sends an element as it is, or not at all, and remembers it then; DGC's velocity is no gradient, and of sums
within a host one rank remembers what all have."""


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


def hash_name(name: str) -> int:
    return sum((position + 1) * ord(letter) for position, letter in enumerate(name))


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
    make_lane: LaneMaker = lane_for,
    **sgd: float,
) -> ReducingOptimizer:
    """An SGD optimizer that reduces over the engine that `connect` creates."""
    optimizer = torch.optim.SGD(list(parameters.values()), **{"lr": 0.1, **sgd})
    names = name_parameters(optimizer, parameters.items())
    settings = settings or Settings(fusion_threshold_bytes=600, timeout_s=60)  # three buckets with SHAPES
    named = {name: parameter for parameter, name in trainable(names).items()}
    reducer = Reducer(named, request, connect, options or ReduceOptions(), settings, make_lane)
    return wrap(optimizer, names, reducer, passes, rank, size)


def on_engine(
    engine: Engine, request: Request, **arguments: object
) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
    """Parameters and their optimizer on an engine that exists already."""
    parameters = make_parameters()
    optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, **arguments)
    return parameters, optimizer


def backward(parameters: Mapping[str, torch.nn.Parameter], rank: int, step: int) -> None:
    """Give every parameter its gradient through autograd, as a loss would."""
    loss = sum((p * gradient(name, tuple(p.shape), rank, step).to(p.dtype)).sum() for name, p in parameters.items())
    loss.backward()


def flat_gradient(parameters: Mapping[str, torch.nn.Parameter]) -> torch.Tensor:
    """All gradients of a rank in one tensor."""
    return torch.cat([parameter.grad.reshape(-1).float() for parameter in parameters.values()])


def flat_residual(optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter]) -> torch.Tensor:
    """All residuals of a rank in one tensor, zeros where there is none yet."""
    kept = optimizer.state_dict()["hvd_compress"]["residuals"]
    return torch.cat([kept.get(name, torch.zeros(p.numel())).reshape(-1) for name, p in parameters.items()])
