"""DDP of one rank is plain training, to the bit; and a program's own longer timeout counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.engines.torch_timeout import own_timeout_s
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import REQUESTS, flat, loss_of, make_model, optimizer_of


def test_one_rank_is_plain_training_to_the_bit() -> None:
    run_ranks(train_alone, ranks=1)


def train_alone(rank: int) -> None:
    plain = DistributedDataParallel(make_model())
    expected = trained(plain, rank)
    for name, request in REQUESTS.items():
        ddp = hc.compress(DistributedDataParallel(make_model()), request)
        assert torch.equal(trained(ddp, rank), expected), name
        assert hc.compress(ddp, request) is ddp
        assert {each.compressor.compresses for each in hc.of(ddp).decisions.values()} == {False}, name
        kept = hc.of(ddp).gathered_state_dict()
        hc.of(ddp).load_gathered_state_dict(kept)


def trained(ddp: DistributedDataParallel, rank: int) -> torch.Tensor:
    optimizer = optimizer_of(ddp)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    return flat(ddp)


def test_a_group_of_one_rank_of_two() -> None:
    run_ranks(train_in_a_part, ranks=2)


def train_in_a_part(rank: int) -> None:
    groups = [dist.new_group([each]) for each in range(2)]
    models = [DistributedDataParallel(make_model(), process_group=groups[rank]) for _ in range(2)]
    hc.compress(models[1], hc.Compression.int4())
    assert torch.equal(*(trained(each, rank) for each in models))


@pytest.mark.parametrize(("variable", "expected_s"), [("300", [7200.0, 300.0, 300.0]), ("20", [20.0] * 3)])
def test_a_longer_timeout_of_the_program_counts(variable: str, expected_s: list[float]) -> None:
    """But not where HVD_COMPRESS_TIMEOUT_S says something else than its default."""
    assert run_ranks(patience, ranks=2, HVD_COMPRESS_TIMEOUT_S=variable) == [expected_s] * 2


def patience(_: int) -> list[float]:
    """Return how long sessions wait, by the limits of groups: a longer one, a shorter one, torch's."""
    found = []
    for limit in (timedelta(hours=2), timedelta(seconds=60), None):
        group = dist.new_group(timeout=limit)
        assert own_timeout_s(group) == (limit.total_seconds() if limit else 0.0)
        ddp = hc.compress(DistributedDataParallel(make_model(), process_group=group), hc.Compression.int8())
        found.append(hc.of(ddp).session._pipeline._waits.timeout_s)
    return found
