"""DDP with every compression: ranks stay equal, and a step is what DistributedOptimizer's reducer makes of it."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress import collectives
from hvd_compress.compressors import TopK
from hvd_compress.engines import base as engines_base
from tests.brought import brought
from tests.harness import gradient, remembered, use
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import (
    BROUGHT,
    REQUESTS,
    Given,
    Twin,
    check_ranks_equal,
    compressed,
    flat,
    loss_of,
    make_model,
    optimizer_of,
)

WHOLE = 25.0
"""A bucket_cap_mb with which the model is one bucket."""
FIRST_TWINS = ("star", "powersgd", "int4", *BROUGHT)
TWINS = ("star", "allgather", "efsign", "powersgd", "int8", "int4", *BROUGHT, "dense", "bf16")


def train(ddp: DistributedDataParallel, rank: int, steps: int) -> list[float]:
    """Return the losses; ranks are compared after every step."""
    optimizer, losses = optimizer_of(ddp), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        optimizer.step()
        check_ranks_equal(ddp.module, step)
        losses.append(loss.item())
    return losses


@pytest.mark.level2
def test_every_compression_trains_and_ranks_stay_equal() -> None:
    run_ranks(train_with_all)


def train_with_all(rank: int) -> None:
    for name in REQUESTS:
        ddp = compressed(make_model(), name)
        losses = train(ddp, rank, 25)
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), f"{name}: {losses}"
        assert hc.of(ddp).last_step.step == 24
        assert hc.of(ddp).last_step.finite
        assert len(hc.of(ddp).decisions) > 1


@pytest.mark.level2
def test_hosts_of_two_ranks() -> None:
    """With a ratio of 1 nothing is lost, so that training is that of dense gradients."""
    run_ranks(train_on_hosts, ranks=4)


def train_on_hosts(rank: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines_base, "host_identity", lambda: f"host {rank // 2}")
        dense = compressed(make_model(), "dense")
        train(dense, rank, 8)
        for collective in filter(collectives.by_name, collectives.names_for(TopK(1.0))):
            ddp = compressed(make_model(), hc.Compression.topk(1.0).by(collective=collective))
            train(ddp, rank, 8)
            torch.testing.assert_close(flat(ddp), flat(dense), rtol=1e-4, atol=1e-5)
            assert {decision.collective for decision in hc.of(ddp).decisions.values()} == {collective}


@pytest.mark.parametrize("name", ["topk", "auto", *dict(brought("ADAPTIVE"))])
def test_it_is_chosen_while_it_trains(name: str, tmp_path) -> None:
    variables = {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0.1", "HVD_COMPRESS_CACHE": str(tmp_path)}
    run_ranks(train_adaptively, name, **variables)


def train_adaptively(rank: int, name: str) -> None:
    ddp = compressed(make_model(), name)
    assert hc.of(ddp).controller is None
    train(ddp, rank, 30)
    assert hc.of(ddp).controller.history.events


@pytest.mark.parametrize(("ranks", "exact"), [(2, True), (3, False)])
def test_dense_is_stock_ddp(ranks: int, exact: bool) -> None:
    """Stock DDP divides before it sums, which is exact for powers of two; with other numbers of ranks it rounds."""
    run_ranks(compare_with_stock, exact, ranks=ranks)


def compare_with_stock(rank: int, exact: bool) -> None:
    stock = DistributedDataParallel(make_model(), bucket_cap_mb=0.004)
    ddp = compressed(make_model(), "dense")
    train(stock, rank, 20)
    train(ddp, rank, 20)
    if exact:
        assert torch.equal(flat(stock), flat(ddp))
    else:
        torch.testing.assert_close(flat(ddp), flat(stock), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "cap_mb", "steps"),
    [
        *((name, 0.004, 50) for name in FIRST_TWINS),
        *(pytest.param(name, 0.004, 50, marks=pytest.mark.level2) for name in TWINS if name not in FIRST_TWINS),
        *(pytest.param(name, WHOLE, 10, marks=pytest.mark.level2) for name in TWINS),
    ],
)
def test_a_step_is_that_of_the_reducer_to_the_bit(name: str, cap_mb: float, steps: int) -> None:
    """With find_unused_parameters DDP keeps its first buckets."""
    run_ranks(compare_with_reducer, name, cap_mb, steps)


def compare_with_reducer(rank: int, name: str, cap_mb: float, steps: int) -> None:
    ddp = compressed(make_model(), name, bucket_cap_mb=cap_mb, find_unused_parameters=True)
    optimizer = optimizer_of(ddp)
    twin: Twin | None = None
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
        buckets = list(hc.of(ddp).decisions)
        twin = twin or Twin(make_model(), name, buckets)
        twin.step(loss_of(twin.model, rank, step))
        assert list(twin.reducer.handle.decisions.values()) == list(hc.of(ddp).decisions.values())
        assert torch.equal(flat(twin.model), flat(ddp.module)), f"step {step}"
    assert len(buckets) == (1 if cap_mb == WHOLE else 3), buckets
    twin.reducer.close()


class Odd(torch.nn.Module):
    """A frozen parameter, one that is not used in odd steps, one of bfloat16 beside float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = torch.nn.Linear(13, 20)
        self.frozen = torch.nn.Linear(20, 20).requires_grad_(False)
        self.never, self.sometimes = torch.nn.Linear(20, 30), torch.nn.Linear(20, 20)
        self.last = torch.nn.Linear(20, 3, dtype=torch.bfloat16)

    def forward(self, images: torch.Tensor, step: int) -> torch.Tensor:
        hidden = self.frozen(self.used(images).tanh())
        hidden = hidden if step % 2 else self.sometimes(hidden)
        return self.last(hidden.bfloat16()).float()


def test_parameters_frozen_unused_and_of_two_dtypes() -> None:
    run_ranks(train_odd)


def train_odd(rank: int) -> None:
    for name in REQUESTS:
        ddp = compressed(Odd(), name, find_unused_parameters=True)
        before = copy.deepcopy(ddp.module.state_dict())
        optimizer = optimizer_of(ddp)
        for step in range(6):
            optimizer.zero_grad()
            images = torch.randn(8, 13, generator=torch.Generator().manual_seed(10 * rank + step))
            # not every rank uses the same ones
            ddp(images, step + rank * (step > 3)).square().mean().backward()
            optimizer.step()
            check_ranks_equal(ddp.module, f"{step} of {name}")
        after = ddp.module.state_dict()
        unchanged = {key for key in after if torch.equal(before[key], after[key])}
        unused = {"frozen.weight", "frozen.bias", "never.weight", "never.bias"}
        assert unchanged == unused, name
        assert not any("frozen" in n for names in hc.of(ddp).decisions for n in names)


def test_no_sync_sums_gradients_before_they_are_exchanged() -> None:
    run_ranks(accumulate)


def accumulate(rank: int) -> None:
    for name in ("star", "powersgd", "dense"):
        ddp = compressed(make_model(), name, find_unused_parameters=True)
        optimizer, twin = optimizer_of(ddp), None
        for step in range(10):
            optimizer.zero_grad()
            with ddp.no_sync():
                loss_of(ddp, rank, 3 * step).backward()
                loss_of(ddp, rank, 3 * step + 1).backward()
            loss_of(ddp, rank, 3 * step + 2).backward()
            optimizer.step()
            assert hc.of(ddp).last_step.step == step
            twin = twin or Twin(make_model(), name, list(hc.of(ddp).decisions))
            twin.step(*(loss_of(twin.model, rank, 3 * step + part) for part in range(3)))
            assert torch.equal(flat(twin.model), flat(ddp.module)), f"{name}, step {step}"


@pytest.mark.level2
def test_ddps_options_change_no_result() -> None:
    run_ranks(compare_options)


def compare_options(rank: int) -> None:
    for name in ("star", "allgather", *BROUGHT):
        results = []
        for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
            ddp = compressed(make_model(), name, **options)
            train(ddp, rank, 10)
            results.append((tuple(hc.of(ddp).decisions), flat(ddp)))
        plain, static, views = results
        assert plain[0] == views[0]
        assert torch.equal(plain[1], views[1]), name
        assert len(static[0]) > 1  # its first step has other buckets than plain[0]
        with_views = compressed(make_model(), name, static_graph=True, gradient_as_bucket_view=True)
        train(with_views, rank, 10)
        assert torch.equal(static[1], flat(with_views)), name


def test_join_lets_ranks_that_are_done_give_zeros() -> None:
    run_ranks(train_unevenly)


def train_unevenly(rank: int) -> None:
    steps = (7, 5, 9)
    for name in ("star", "efsign", *BROUGHT, "dense"):
        ddp = compressed(make_model(), name, find_unused_parameters=True)
        optimizer = optimizer_of(ddp)
        with ddp.join():
            for step in range(steps[rank]):
                optimizer.zero_grad()
                loss_of(ddp, rank, step).backward()
                optimizer.step()
        assert hc.of(ddp).last_step.step == max(steps) - 1
        twin = Twin(make_model(), name, list(hc.of(ddp).decisions))
        for step in range(max(steps)):
            twin.step(*([loss_of(twin.model, rank, step)] if step < steps[rank] else []))
        assert torch.equal(flat(twin.model), flat(ddp.module)), name


def test_two_models_in_one_process() -> None:
    run_ranks(train_two)


def train_two(rank: int) -> None:
    first, second = compressed(make_model(1), "star"), compressed(make_model(2), "efsign")
    optimizers = [optimizer_of(first), optimizer_of(second)]
    for step in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss_of(first, rank, step) + loss_of(second, rank, step + 100)).backward()
        for optimizer in optimizers:
            optimizer.step()
        check_ranks_equal(first, step)
        check_ranks_equal(second, step)
    assert hc.of(first).last_step.sent_bytes != hc.of(second).last_step.sent_bytes
    apart = compressed(make_model(1), "star")
    train(apart, rank, 10)
    assert torch.equal(flat(apart), flat(first)), "another model changes nothing"
    del first, optimizers
    gc.collect()
    train(second, rank, 3)


def test_a_model_of_some_ranks() -> None:
    run_ranks(train_in_part)


def train_in_part(rank: int) -> None:
    group = dist.new_group([0, 2])
    if rank != 1:
        ddp = compressed(make_model(), "star", process_group=group, find_unused_parameters=True)
        optimizer = optimizer_of(ddp)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
        assert list(hc.state_dict(ddp)["ranks"]) == [f"rank {rank // 2} of 2"]
        assert hc.of(ddp).last_step.step == 5
    weights = flat(ddp) if rank != 1 else torch.zeros_like(flat(make_model()))
    others = [torch.empty_like(weights) for _ in range(3)]
    dist.all_gather(others, weights)
    assert torch.equal(others[0], others[2])
    assert not torch.equal(others[0], flat(make_model()))


def test_what_is_not_sent_outlives_a_change_of_buckets() -> None:
    run_ranks(conserve)


def conserve(rank: int) -> None:
    """Over ranks and steps, what was given is what all received and what is left."""
    ranks = dist.get_world_size()
    for name in ("star", "var", "allgather", "layerwise", "efsign", *BROUGHT):
        ddp = compressed(Given(), name, bucket_cap_mb=0.0006)
        names = [n for n, _ in ddp.module.named_parameters()]
        given, received = ({n: torch.zeros_like(p) for n, p in ddp.module.named_parameters()} for _ in range(2))
        cuts: list[Any] = []
        for step in range(6):
            ddp.zero_grad()
            ddp(rank, step).backward()
            use(ddp.parameters())
            cuts.append(tuple(hc.of(ddp).decisions))
            left = remembered(hc.state_dict(ddp))["residuals"]
            for n, parameter in ddp.module.named_parameters():
                for each in range(ranks):
                    given[n] += gradient(n, tuple(parameter.shape), each, step)
                received[n] += ranks * parameter.grad
                total = left[n].clone()
                dist.all_reduce(total)
                torch.testing.assert_close(received[n].reshape(-1) + total, given[n].reshape(-1), rtol=1e-4, atol=1e-4)
        assert cuts[0] != cuts[1] == cuts[-1], "DDP was to cut its buckets anew"
        assert sum(float(left[n].abs().sum()) for n in names) > 0, name
