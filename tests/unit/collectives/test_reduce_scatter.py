"""Reduce-scatter of quantised pieces, on ranks in process."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work, build
from hvd_compress.compressors import BlockQuantizer, Cast, Compressor, Natural, OneBit, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.engines.layout import shard
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState

RANKS = 3
NUMEL = 3 * 333  # pieces begin anywhere
PATH = Path("reduce-scatter")


@dataclass(frozen=True)
class Seen:
    """One step of one rank."""

    result: torch.Tensor
    finite: bool
    sent_bytes: int
    residual: torch.Tensor


def gradients(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(RANKS)]


def step(
    compressor: Compressor, given: list[torch.Tensor], number: int = 0, residuals: list[torch.Tensor] | None = None
) -> list[Seen]:
    def body(engine: InProcessEngine) -> Seen:
        gradient, state = given[engine.rank].clone(), BucketState()
        if compressor.error_feedback:
            before = torch.zeros(NUMEL) if residuals is None else residuals[engine.rank]
            state = BucketState(Residual(before, torch.full_like(before, 7.0), may_defer=True))
        layout = Layout.of((RANKS, NUMEL // RANKS), dtype=gradient.dtype)
        work = Work(gradient, layout, number, bucket=3, scale=1 / RANKS, state=state, rank=engine.rank)
        exchange = build(compressor, PATH).exchange(work, engine.rank, RANKS)
        exchange.encode()
        exchange.communicate(engine)
        finite = bool(exchange.decode())
        assert exchange.result is not None
        pending = state.residual.pending if state.residual is not None else torch.empty(0)
        return Seen(exchange.result, finite, sum(call.sent_bytes for call in engine.take_calls()), pending)

    return run_ranks(RANKS, body)


def mean_of(given: list[torch.Tensor], rank: int) -> torch.Tensor:
    total = sum((each.float() for each in given), torch.zeros(NUMEL)) / RANKS
    return total[shard(NUMEL, RANKS, rank)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_uncompressed_it_is_the_mean_of_the_own_shard(dtype: torch.dtype) -> None:
    given = gradients(dtype)
    for rank, seen in enumerate(step(Cast(), given)):
        torch.testing.assert_close(seen.result, mean_of(given, rank), rtol=1e-6, atol=1e-6)
        assert seen.finite
        assert seen.result.dtype == torch.float32


@pytest.mark.parametrize(
    ("compressor", "error"),
    [
        (Cast(torch.bfloat16), 0.01),
        (BlockQuantizer(8, stochastic=True), 0.02),
        (BlockQuantizer(4, stochastic=True), 0.3),
        (Natural(), 0.5),
    ],
)
def test_it_is_right_on_average(compressor: Compressor, error: float) -> None:
    """Each step near, and the mean over steps ten times as near: each draws its own random numbers."""
    given, steps = gradients(), 200
    found = [step(compressor, given, number) for number in range(steps)]
    for rank in range(RANKS):
        expected = mean_of(given, rank)
        off = [(each[rank].result - expected).abs().max() for each in found]
        assert max(off) < error * 4, "a step"
        whole = torch.stack([each[rank].result for each in found])
        assert (whole.mean(dim=0) - expected).square().mean().sqrt() < error / 10, "on average"
        if not isinstance(compressor, Cast):
            assert not torch.equal(found[0][rank].result, found[1][rank].result), "no random numbers are drawn"


def test_each_owner_gets_random_numbers_of_its_own() -> None:
    """Else equal gradients would be rounded alike in all shards, and the errors of a step would not cancel."""
    nothing, same = torch.zeros(NUMEL), gradients()[0][: NUMEL // RANKS].repeat(RANKS)
    first, second, _ = step(BlockQuantizer(4, stochastic=True), [nothing, nothing, same])
    assert not torch.equal(first.result, second.result)


@pytest.mark.parametrize("compressor", [BlockQuantizer(8), BlockQuantizer(4), OneBit(64), Natural(True)])
def test_with_feedback_nothing_is_lost(compressor: Compressor) -> None:
    """What has arrived, and what is remembered, is what there was; of the own shard nothing is remembered."""
    given = gradients()
    before = [0.01 * each.flip(0) for each in given]
    seen = step(compressor, given, residuals=[each.clone() for each in before])
    for rank, own in enumerate(seen):
        part = shard(NUMEL, RANKS, rank)
        assert not own.residual[part].any()
        arrived = RANKS * own.result + sum(each.residual[part] for each in seen)
        there_was = sum(g[part] + b[part] for g, b in zip(given, before, strict=True))
        torch.testing.assert_close(arrived, there_was, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("compressor", [BlockQuantizer(4, stochastic=True), BlockQuantizer(8), Natural(), Cast()])
def test_what_is_not_finite_on_one_rank_reaches_all(compressor: Compressor, bad: float) -> None:
    given = gradients()
    given[1][0] = bad  # in the shard of rank 0
    for seen in step(compressor, given):
        assert not seen.finite
        assert seen.result.isnan().all()


@pytest.mark.parametrize(("bits", "block"), [(8, 64), (4, 64), (3, 64), (2.5, 128), (2, 128)])
def test_bytes(bits: float, block: int) -> None:
    """Codes and scales of what others own, and a header for each."""
    piece = NUMEL // RANKS
    payload = BlockQuantizer(bits, block, True)
    expected = (RANKS - 1) * payload.template(piece).packed_bytes
    assert {seen.sent_bytes for seen in step(payload, gradients())} == {expected}


def test_the_gradient_is_let_go_when_it_is_compressed() -> None:
    """It is as large as all shards, which no rank of FSDP is to hold for long."""
    compressor, held = BlockQuantizer(8, stochastic=True), []

    def body(engine: InProcessEngine) -> None:
        gradient = gradients()[engine.rank]
        layout = Layout.of((RANKS, NUMEL // RANKS))
        work = Work(gradient, layout, 0, bucket=0, scale=1.0, rank=engine.rank)
        exchange = build(compressor, PATH).exchange(work, engine.rank, RANKS)
        exchange.encode()
        memory = weakref.ref(gradient)
        del gradient, work
        held.append(memory() is not None)
        exchange.communicate(engine)
        exchange.decode()

    run_ranks(RANKS, body)
    assert held == [False] * RANKS


def test_what_is_chosen_by_each_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot carry"):
        build(TopK(0.1), PATH)
