"""Local steps of a DDP model that others have wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress
import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.local import LocalSteps
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, flat, loss_of, make_model

pytestmark = pytest.mark.level2


def test_two_ranks() -> None:
    run_ranks(check_all, ranks=2)


def check_all(rank: int) -> None:
    for check in (exchanges_nothing_between, refused):
        check(rank)


def wrapped(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(make_model(), **options)


def steps_of(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, count: int) -> None:
    for step in range(count):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def apart(model: torch.nn.Module) -> bool:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, flat(model))
    return not torch.equal(*found)


def exchanges_nothing_between(rank: int) -> None:
    """Neither gradients nor buffers, also where DDP would look for parameters that no rank has used."""
    for options in ({}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.BatchNorm1d(13, track_running_stats=True), make_model()), **options
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = hc.local_steps(model, optimizer, every=4, start_after=2)
        model.eval()
        model.module[0].running_mean.fill_(float(rank))
        model(torch.zeros(1, 13))
        assert (model.module[0].running_mean == rank).all(), "DDP has broadcast buffers"
        model.train()
        steps_of(model, optimizer, rank, 2)
        assert not apart(model.module[1])
        steps_of(model, optimizer, rank, 2 + rank)
        assert apart(model.module[1])
        local.finish()
        check_ranks_equal(model, "finish()")
        found: list[Any] = [None, None]
        dist.all_gather_object(found, model.module[0].running_mean)
        assert torch.equal(*found)
        assert hvd_compress.of(local).metrics()["local/spread"] > 0


def refused(rank: int) -> None:
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hc.local_steps(model, optimizer)
    with pytest.raises(UsageError, match="takes local steps already"):
        hc.local_steps(model, optimizer)
    with pytest.raises(UsageError, match=r"pass compression= to local_steps\(\)"):
        hc.compress(model, hc.Compression.int4())
    with pytest.raises(ConfigError, match=r"call hvd_compress.ddp.local_steps\(model, optimizer"):
        LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model)
    part = wrapped()
    with pytest.raises(ConfigError, match=r"does not train 2 parameters, '0\.weight' first"):
        hc.local_steps(part, torch.optim.SGD(list(part.parameters())[2:], lr=0.1))
    with pytest.raises(ConfigError, match="leave static_graph out"):
        hc.local_steps(wrapped(static_graph=True), optimizer)
    compressed = hc.compress(wrapped(), hc.Compression.int4())
    with pytest.raises(UsageError, match="gradients are compressed"):
        hc.local_steps(compressed, torch.optim.SGD(compressed.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="DistributedDataParallel"):
        hc.local_steps(make_model(), optimizer)


def test_one_process_trains_as_without_it() -> None:
    found = []
    for takes in (True, False):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = hc.local_steps(model, optimizer, every=2) if takes else None
        steps_of(model, optimizer, 0, 4)  # type: ignore[arg-type]
        if local is not None:
            local.finish()
        found.append(flat(model))
    assert torch.equal(*found)
