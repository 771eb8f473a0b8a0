"""Compression.auto() under DDP, which cuts its buckets anew after the first step."""

from __future__ import annotations

import torch.distributed as dist

import hvd_compress.ddp as hc
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, compressed, make_model, optimizer_of, train


def test_ranks_choose_the_same_and_stay_equal() -> None:
    run_ranks(choose, ranks=2, HVD_COMPRESS_ADAPT="1", HVD_COMPRESS_CHECK_EVERY="5")


def choose(rank: int) -> None:
    model = compressed(make_model(), hc.Compression.auto())
    optimizer = optimizer_of(model)
    train(model, optimizer, rank, range(40))
    check_ranks_equal(model, "auto")
    assert hc.of(model).controller.settled
    chosen = [(names, str(d), d.reason) for names, d in hc.of(model).decisions.items()]
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, chosen)
    assert everyone == [chosen] * len(everyone)
    assert all("a step not hidden" in reason for *_, reason in chosen)
    assert all(not d.is_trial for d in hc.of(model).decisions.values())
