"""One training with plain DDP, and with compressions in its place on the same data.

What loses nothing must end in the state of plain DDP; with two ranks that is exact, as halves are. With what loses
something ranks must stay equal to the bit, and the loss must fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.request.request import Request
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal

STEPS = 8
EXACT = {"none": hc.Compression.none, "dense": hc.Compression.dense()}
ROUNDED = {
    "allgather": hc.Compression.topk(1.0).by(collective="allgather"),
    "star": hc.Compression.topk(1.0).by(collective="star"),
}
LOSSY = {
    "int8": hc.Compression.int8(),
    "int4": hc.Compression.int4(),
    "topk": hc.Compression.topk(0.1),
    "powersgd": hc.Compression.powersgd(2),
}

Wrap = Callable[..., DistributedDataParallel]
"""Makes a model distributed: wrap(model, **options of DDP)."""
Situation = Callable[[Wrap, int], Iterator[Any]]
"""A training program: situation(wrap, rank) yields the model, and then the loss after each step."""


def check_as_plain(situation: Situation, tolerance: float = 1e-5, exact: float = 0.0) -> None:
    """Compare all ways of training in this situation with two ranks.

    Args:
        situation: a function of a module, as ranks are processes.
        tolerance: of what sums and rounds in another order than plain DDP.
        exact: of what does not.
    """
    run_ranks(_compare, situation, tolerance, exact, ranks=2)


def _compare(rank: int, situation: Situation, tolerance: float, exact: float) -> None:
    expected, losses = _trained(situation, rank, None)
    assert losses[-1] < losses[0], f"plain DDP learns nothing: {losses}"
    for name, request in (EXACT | ROUNDED).items():
        state, _ = _trained(situation, rank, request)
        assert state.keys() == expected.keys()
        for key, tensor in state.items():
            allowed = exact if name in EXACT else tolerance
            told = f"{name}, {key}: {{}}".format
            torch.testing.assert_close(tensor, expected[key], rtol=allowed, atol=allowed, msg=told)
    for name, request in LOSSY.items():
        _, losses = _trained(situation, rank, request)
        assert losses[-1] < losses[0], f"{name}: {losses}"


def _trained(situation: Situation, rank: int, request: Request | None) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the state of the model in the end, and the loss of each step."""

    def wrap(model: nn.Module, **options: Any) -> DistributedDataParallel:
        ddp = DistributedDataParallel(model, **{"bucket_cap_mb": 0.0005, **options})
        return ddp if request is None else hc.compress(ddp, request)

    torch.manual_seed(0)
    training = situation(wrap, rank)
    ddp, losses = next(training), []
    for step, loss in enumerate(training):
        losses.append(loss)
        check_ranks_equal(ddp.module, step)
    if request is not None:
        assert len(hc.of(ddp).decisions) > 1, "several buckets, or their order is not tested"
        assert hc.of(ddp).last_step.finite
    return {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()}, losses


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, **{"lr": 0.05, "momentum": 0.5, **options})


def images(rank: int, *shape: int) -> torch.Tensor:
    """Those of a rank, the same in every step, so that the loss falls."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + rank))


def taught(
    ddp: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[int], torch.Tensor], steps: int = STEPS
) -> Iterator[Any]:
    """Yield the model, then take plain steps and yield their losses."""
    yield ddp
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        yield loss.item()
