"""A plan under DDP: what is in use can be pinned, and DDP's own buckets are respected."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

import hvd_compress.ddp as hc
from hvd_compress.errors import PlanError, UsageError
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, compressed, flat, loss_of, make_model, optimizer_of

STEPS = 6


def train(ddp: torch.nn.Module, rank: int) -> torch.Tensor:
    optimizer = optimizer_of(ddp)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
        check_ranks_equal(ddp.module, step)
    return flat(ddp.module)


def test_what_is_in_use_can_be_pinned(tmp_path: Path) -> None:
    run_ranks(pin, tmp_path / "plan.json", ranks=2)


def pin(rank: int, file: Path) -> None:
    first = compressed(make_model(), hc.Compression.topk(0.1).by(collective="star"))
    with pytest.raises(UsageError, match="before the first step"):
        hc.of(first).save_plan(file)
    trained = train(first, rank)
    if rank == 0:
        hc.of(first).save_plan(file)
    torch.distributed.barrier()
    again = compressed(make_model(), hc.Compression.plan(file))
    assert torch.equal(train(again, rank), trained)
    assert hc.of(again).decisions == hc.of(first).decisions
    assert len(hc.of(again).decisions) > 1


def test_a_bucket_that_is_treated_in_several_ways_is_sent_dense(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    topk = {"name": "topk", "ratio": 0.1}
    file.write_text(
        json.dumps({"version": 1, "patterns": [{"pattern": "*.weight", "compressor": topk}], "default": {}})
    )
    run_ranks(mix, file, ranks=2)


def mix(rank: int, file: Path) -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hvd_compress").addHandler(handler)
    ddp = compressed(make_model(), hc.Compression.plan(file))
    train(ddp, rank)
    for names, decision in hc.of(ddp).decisions.items():
        kinds = {name.endswith(".weight") for name in names}
        expected = "dense" if len(kinds) > 1 else "allgather" if kinds == {True} else "dense"
        assert decision.collective == expected, (names, decision)
    found = hc.of(ddp).decisions.items()
    mixed = {names: d for names, d in found if len({name.endswith(".weight") for name in names}) > 1}
    assert mixed
    assert all(decision.reason == "the plan treats its parameters in several ways" for decision in mixed.values())
    assert len(told) == (rank == 0)
    first = next(iter(mixed))[0]
    assert all(f"of {len(mixed)} of the buckets" in words and f"that of {first} " in words for words in told), told


def test_a_plan_of_another_model_is_refused_on_every_rank(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "buckets": [{"parameters": ["nobody"]}]}))
    run_ranks(refuse, file, ranks=2)


def refuse(rank: int, file: Path) -> None:
    ddp = compressed(make_model(), hc.Compression.plan(file))
    with pytest.raises(PlanError, match=r"the plan does not fit: a bucket names a parameter 'nobody'"):
        loss_of(ddp, rank, 0).backward()
