"""What the tests of this folder share: a small model, data that differ between ranks and steps, and comparisons."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.harness import remembered

BY_LAUNCHER = {"OMPI_COMM_WORLD_SIZE": ("mpi", "horovod"), "TORCHELASTIC_RUN_ID": ("torch", "horovod")}
ENGINES = next((engines for variable, engines in BY_LAUNCHER.items() if variable in os.environ), ("horovod",))
"""What this launch offers: without mpirun there is no MPI."""

EXACT = {
    "dense": hvd.Compression.dense().by(engine=ENGINES[0]),
    "allgather-all": hvd.Compression.topk(1.0).by(collective="allgather", engine=ENGINES[-1]),
    "star-all": hvd.Compression.topk(1.0).by(collective="star", engine=ENGINES[0]),
}
"""Compressions that lose nothing but rounding, spread over the engines."""

STEPS = 4

Make = Callable[..., Any]
"""Wraps an optimizer for distributed training: make(optimizer, model, **options of DistributedOptimizer)."""

Scenario = Callable[[Make], Iterable[torch.Tensor]]
"""A training program: takes what wraps its optimizer, and returns what it has trained."""


def on_engine(request: Request, engine: str) -> Request:
    return replace(request, engine=engine)


def small_model() -> nn.Sequential:
    """Four parameters, 593 elements, the same values on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(13, 31), nn.Tanh(), nn.Linear(31, 5))


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    """Inputs that every rank can compute for every other; those of this rank by default."""
    generator = torch.Generator().manual_seed(1000 * (hvd.rank() if rank is None else rank) + step)
    return torch.randn((6, 13), generator=generator)


def loss(model: nn.Module, step: int) -> torch.Tensor:
    return model(batch(step)).square().sum()


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.01, "momentum": 0.9, **options})


def maker(compression: Any) -> Make:
    """Return what wraps an optimizer with `compression`."""

    def make(optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
        return hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression, **options
        )

    return make


def train(optimizer: Any, model: nn.Module, steps: Iterable[int] = range(STEPS)) -> Iterator[int]:
    """Take plain training steps, and yield the number of each after it."""
    for step in steps:
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
        yield step


def finish(steps: Iterator[int]) -> None:
    """Run a training to its end."""
    for _ in steps:
        pass


def check_against_horovod(scenario: Scenario, compressions: Mapping[str, Request] = EXACT, **tolerances: float) -> None:
    """Run a scenario with stock Horovod and with what loses nothing, and compare what was trained."""
    tolerances = {"rtol": 1e-5, "atol": 1e-6} | tolerances
    expected = flat(scenario(maker(hvd.Compression.none)))
    for name, compression in compressions.items():
        trained = flat(scenario(maker(compression)))
        torch.testing.assert_close(trained, expected, **tolerances, msg=f"{name}: {{}}".format)
        assert_same_on_all_ranks(trained)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """A copy of all tensors in one, fp64."""
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def residuals(optimizer: Any) -> torch.Tensor:
    """All residuals of this rank, in one tensor."""
    return flat(remembered(optimizer.state_dict()["hvd_compress"])["residuals"].values())


def assert_same_on_all_ranks(tensor: torch.Tensor, process_set: Any = hvd.global_process_set) -> None:
    """Bit by bit. Collective."""
    digest = hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    # Horovod numbers what has no name, and ranks outside the set would count less.
    digests = hvd.allgather(mine, name="digest", process_set=process_set)
    assert digests.numpy().tobytes() == digest * process_set.size()
