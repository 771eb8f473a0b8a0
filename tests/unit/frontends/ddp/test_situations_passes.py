"""Steps of several passes, of some ranks alone, or with gradients of all sizes: compressed DDP as plain DDP."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.request.request import Request
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.situations import (
    EXACT,
    LOSSY,
    STEPS,
    Situation,
    Wrap,
    check_as_plain,
    images,
    sgd,
    taught,
)
from tests.unit.frontends.ddp.training import check_ranks_equal, flat

ITEMS = 12


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4))


def aim(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - 1).square().mean()


def no_sync(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Three passes, of which the last one reduces."""
    ddp = wrap(model())
    optimizer = sgd(ddp)
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            for part in (2, 3):
                aim(ddp(images(rank * part, ITEMS, 13))).backward()
        loss = aim(ddp(images(rank, ITEMS, 13)))
        loss.backward()
        optimizer.step()
        yield loss.item()


def two_passes(wrap: Wrap, rank: int) -> Iterator[Any]:
    """Without no_sync(): the second one adds to the mean of the first, and all of it is reduced again."""
    ddp = wrap(model())
    optimizer = sgd(ddp)
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in (1, 2):
            loss = aim(ddp(images(rank * part, ITEMS, 13)))
            loss.backward()
        optimizer.step()
        yield loss.item()


def clipping(wrap: Wrap, rank: int) -> Iterator[Any]:
    """By norm, which is of the mean over ranks, and by value."""
    ddp, inputs = wrap(model()), images(rank, ITEMS, 13)
    optimizer = sgd(ddp, lr=0.5)
    yield ddp
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = aim(ddp(inputs))
        loss.backward()
        assert nn.utils.clip_grad_norm_(ddp.parameters(), 0.1) > 0.1
        nn.utils.clip_grad_value_(ddp.parameters(), 0.03)
        optimizer.step()
        yield loss.item()


def of_size(wrap: Wrap, rank: int, size: float) -> Iterator[Any]:
    """Gradients of a size, and a learning rate that makes usual steps of them."""
    ddp, inputs = wrap(model()), images(rank, ITEMS, 13)
    training = taught(ddp, sgd(ddp, lr=0.01 / size, momentum=0.0), lambda step: aim(ddp(inputs)) * size * 5)
    yield next(training)
    for loss in training:
        largest = max(float(parameter.grad.abs().max()) for parameter in ddp.parameters())
        assert size / 3 < largest < size * 3
        yield loss


def huge_gradients(wrap: Wrap, rank: int) -> Iterator[Any]:
    return of_size(wrap, rank, 1e30)


def tiny_gradients(wrap: Wrap, rank: int) -> Iterator[Any]:
    return of_size(wrap, rank, 1e-36)


@pytest.mark.parametrize(
    "situation",
    [no_sync, two_passes, clipping, huge_gradients],
    ids=lambda situation: situation.__name__,
)
def test_a_step(situation: Situation) -> None:
    check_as_plain(situation)


def test_tiny_gradients() -> None:
    """Some elements are subnormal, of which plain DDP rounds the halves."""
    check_as_plain(tiny_gradients, exact=1e-6)


def test_join_with_uneven_inputs() -> None:
    """Ranks that are done give zeros; the others go on, as many as there are."""
    run_ranks(join_unevenly, ranks=2)


def join_unevenly(rank: int) -> None:
    ends = []
    for request in (None, *EXACT.values(), *LOSSY.values()):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.0005)
        if request is not None:
            hc.compress(ddp, request)
        optimizer = sgd(ddp)
        with ddp.join():
            for step in range(3 + 4 * rank):
                optimizer.zero_grad()
                aim(ddp(images(10 * rank + step, ITEMS, 13))).backward()
                optimizer.step()
        check_ranks_equal(ddp.module, request)
        ends.append(flat(ddp))
        assert request is None or hc.of(ddp).last_step.step == 6
    for end in ends[1 : 1 + len(EXACT)]:
        assert torch.equal(end, ends[0])
    for end in ends[1 + len(EXACT) :]:
        assert end.isfinite().all()
        assert not torch.equal(end, ends[0])


def test_groups_of_ones_own() -> None:
    """One of all ranks beside the default one, and one of some ranks."""
    run_ranks(train_in_groups, ranks=3)


def train_in_groups(rank: int) -> None:
    everyone, some = dist.new_group([0, 1, 2]), dist.new_group([0, 2])
    for group, members in ((everyone, (0, 1, 2)), (some, (0, 2))):
        ends = [train_of(rank, request, group, members) for request in (None, EXACT["dense"], *LOSSY.values())]
        torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)
        for end in ends:
            others = [torch.empty_like(end) for _ in range(3)]
            dist.all_gather(others, end)
            assert all(torch.equal(others[member], others[0]) for member in members)
            assert len(members) == 3 or not torch.equal(others[1], others[0])


def train_of(rank: int, request: Request | None, group: Any, members: Collection[int]) -> torch.Tensor:
    """Return the parameters in the end: those of a rank outside the group as they were."""
    torch.manual_seed(0)
    own, inputs = model(), images(rank, ITEMS, 13)
    if rank in members:
        ddp = DistributedDataParallel(own, process_group=group, bucket_cap_mb=0.0005)
        if request is not None:
            hc.compress(ddp, request)
        _, *losses = taught(ddp, sgd(ddp), lambda step: aim(ddp(inputs)))
        assert losses[-1] < losses[0]
    return flat(own)
