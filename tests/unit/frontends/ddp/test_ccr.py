"""The communication-to-computation ratio under DDP."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import compressed, flat, make_model, optimizer_of, train


def test_ranks_find_the_same_and_train_the_same() -> None:
    run_ranks(profiled, ranks=2)


def profiled(rank: int) -> None:
    trained = []
    for steps in (0, 2):
        model = compressed(make_model(), hc.Compression.int8())
        optimizer = optimizer_of(model)
        train(model, optimizer, rank, range(4))
        assert hc.of(model).ccr is None
        if steps:
            hc.of(model).profile_ccr(steps)
        train(model, optimizer, rank, range(4, 8))
        trained.append(flat(model))
    found = hc.of(model).ccr
    assert found is not None
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, asdict(found))
    assert everyone == [asdict(found)] * len(everyone)
    assert found.steps == 2
    assert 0 < found.backward_s < 60
    assert 0 < found.communicate_s < 60
    assert torch.equal(*trained)


def test_buckets_that_are_cut_anew_are_profiled_from_then_on() -> None:
    """A static graph is cut anew after its first step, also where exchanges are held back."""
    run_ranks(static, ranks=2)


def static(rank: int) -> None:
    model = compressed(make_model(), hc.Compression.dense(), static_graph=True)
    optimizer = optimizer_of(model)
    hc.of(model).profile_ccr(3)
    begun_s = time.perf_counter()
    train(model, optimizer, rank, range(8))
    taken_s = time.perf_counter() - begun_s
    found = hc.of(model).ccr
    assert found is not None
    assert found.steps == 3
    assert found.communicate_s + found.backward_s < taken_s
    assert len(hc.of(model).decisions) > 1
