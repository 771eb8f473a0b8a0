"""Accordion under DDP: epochs, and learning rates that have decayed."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError, UnsupportedError
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, compressed, make_model, optimizer_of, train

pytestmark = pytest.mark.level2


def test_levels_follow_epochs_and_rates() -> None:
    run_ranks(by_epochs, ranks=2, HVD_COMPRESS_ADAPT="0", HVD_COMPRESS_CHECK_EVERY="3")


def by_epochs(rank: int) -> None:
    levels = (hc.Compression.topk(0.5).by(collective="allgather"), hc.Compression.topk(0.05).by(collective="allgather"))
    model = compressed(make_model(), hc.Compression.accordion(*levels, eta=math.inf, every=1))
    optimizer = optimizer_of(model)
    with pytest.raises(ConfigError, match="no parameter of this model"):
        hc.of(model).follow_learning_rate(torch.optim.SGD(make_model().parameters(), lr=0.1))
    hc.of(model).follow_learning_rate(optimizer)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4])
    used = []
    for epoch in range(6):
        train(model, optimizer, rank, range(3 * epoch, 3 * epoch + 3))
        used.append({round(d.ratio, 1) for d in hc.of(model).decisions.values()})
        scheduler.step()
        hc.of(model).end_epoch()
    check_ranks_equal(model, "accordion")
    assert used == [{0.5}, {0.5}, {0.1}, {0.1}, {0.5}, {0.1}], "the rate has decayed behind the fourth epoch"
    history = hc.of(model).controller.history
    assert any("the learning rate has decayed" in event.reason for event in history.events)


def test_batch_sizes_are_switched_alike() -> None:
    assert len(set(map(tuple, run_ranks(by_batches, ranks=2)))) == 1


def by_batches(rank: int) -> list[int]:
    model = compressed(make_model(), hc.Compression.dense())
    optimizer = optimizer_of(model)
    batches = BatchSampler(SequentialSampler(range(64)), 4, drop_last=False)
    with pytest.raises(ConfigError, match="gather= is missing"):
        hc.BatchSizeSchedule(optimizer, batches, 16)
    gather = hc.of(model).gather_figures
    schedule = hc.BatchSizeSchedule(optimizer, batches, 16, every=1, eta=math.inf, gather=gather)
    seen = []
    for epoch in range(5):
        train(model, optimizer, rank, range(epoch, epoch + 1))
        schedule.step()
        if (rank, epoch) == (1, 3):
            optimizer.param_groups[0]["lr"] /= 10  # this rank alone sees it
        schedule.end_epoch()
        seen.append(batches.batch_size)
    assert seen == [4, 16, 16, 4, 16]
    return seen


def test_parameters_by_themselves_need_the_optimizer() -> None:
    run_ranks(by_itself, ranks=1)


def by_itself(rank: int) -> None:
    levels = (hc.Compression.topk(0.5), hc.Compression.topk(0.05))
    with pytest.raises(UnsupportedError, match="per_parameter=True cuts buckets"):
        compressed(make_model(), hc.Compression.accordion(*levels, per_parameter=True))
