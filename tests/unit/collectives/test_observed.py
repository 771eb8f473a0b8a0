"""What is seen of an exchange: the gains of all ratios, and what it really sent."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import AllGather, ARTopk, Collective, Dense, Observed, Probe, Work
from hvd_compress.compressors import BlockQuantizer, Cast, Compressor, Natural, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState

NUMEL, KS = 5000, (5, 50, 500, 5000)
COLLECTIVES = {
    "allgather": AllGather(TopK(0.01)),
    "star": ARTopk(TopK(0.01), Path("star")),
    "var": ARTopk(TopK(0.01), Path("var")),
    "dense": Dense(Cast()),
}


def work(rank: int, dtype: torch.dtype = torch.float32, ks: tuple[int, ...] | None = None) -> Work:
    generator = torch.Generator().manual_seed(rank)
    gradient = (torch.randn(NUMEL, generator=generator) ** 3).to(dtype)
    residual = torch.randn(NUMEL, generator=generator)
    state = BucketState(Residual(residual, torch.full((NUMEL,), torch.nan), may_defer=True))
    return Work(gradient, Layout.of(NUMEL, dtype=dtype), 0, 0, 0.5, state, probe=Probe(ks=ks))


def run(engine: InProcessEngine, collective: Collective, ks: tuple[int, ...] | None, dtype: torch.dtype):
    own = work(engine.rank, dtype, ks)
    exchange = collective.exchange(own, engine.rank, engine.world_size)
    observed = Observed(exchange, own, collective.error_feedback) if ks is not None else exchange
    observed.encode()
    observed.communicate(engine)
    assert bool(observed.decode())
    return own, observed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_it_changes_nothing_and_sees_what_is_sent(name: str, dtype: torch.dtype) -> None:
    plain = run_ranks(2, lambda engine: run(engine, COLLECTIVES[name], None, dtype))
    watched = run_ranks(2, lambda engine: run(engine, COLLECTIVES[name], KS, dtype))
    for rank, ((expected, _), (own, observed)) in enumerate(zip(plain, watched, strict=True)):
        assert torch.equal(own.gradient, expected.gradient)
        assert torch.equal(own.pending, expected.pending)
        fresh = work(rank, dtype)
        corrected = fresh.gradient.double() + fresh.residual.double()
        squares = corrected.square().sort(descending=True).values
        gains, sent = observed.gains(), observed.report.sent
        assert gains == pytest.approx([float(squares[:k].sum() / squares.sum()) for k in KS], rel=0.02)
        left = own.pending.double().square().sum()
        if name == "dense":
            assert sent is None, "no residual says what was not sent"
        else:
            assert sent == pytest.approx(float(1 - left / squares.sum()), abs=1e-4)
    first = watched[0][1]  # rank 0 is the root of STAR's first step; everybody's choice counts of an all-gather
    if name in ("allgather", "star"):
        assert first.report.sent == pytest.approx(first.gains()[1], rel=0.02)


def test_without_ratios_it_sees_only_what_is_sent() -> None:
    for _, observed in run_ranks(2, lambda engine: run(engine, COLLECTIVES["allgather"], (), torch.float32)):
        assert observed.gains() == []
        assert 0 < observed.report.sent < 1


def test_nothing_to_send_is_sent_in_full() -> None:
    def body(engine: InProcessEngine) -> tuple[list[float], float | None]:
        state = BucketState(Residual(torch.zeros(100), torch.zeros(100)))
        zero = Work(torch.zeros(100), Layout.of(100), 0, 0, 1.0, state, probe=Probe(ks=(1,)))
        observed = Observed(
            COLLECTIVES["allgather"].exchange(zero, engine.rank, engine.world_size), zero, remembers=True
        )
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        return observed.gains(), observed.report.sent

    assert run_ranks(2, body) == [([1.0], 1.0)] * 2


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_coefficient_of_the_residual_counts(name: str) -> None:
    """The same is seen as of a residual that is half as large."""

    def body(engine: InProcessEngine, coefficient: float) -> tuple[list[float | None], torch.Tensor]:
        own = replace(work(engine.rank, ks=KS), coefficient=coefficient)
        own.state.residual.current.mul_(0.5 / coefficient)
        collective = COLLECTIVES[name]
        observed = Observed(collective.exchange(own, engine.rank, engine.world_size), own, collective.error_feedback)
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        return [*observed.gains(), observed.report.sent], own.gradient

    halves, wholes = (run_ranks(2, lambda engine, c=c: body(engine, c)) for c in (0.5, 1.0))
    for (gains, result), (expected, same) in zip(halves, wholes, strict=True):
        assert gains == expected
        assert torch.equal(result, same)


@pytest.mark.parametrize("compressor", [Natural(), Cast(), BlockQuantizer(4)], ids=str)
def test_where_nothing_is_remembered_nobody_says_what_was_sent(compressor: Compressor) -> None:
    """Neither alone nor after a compressor that has left a residual; gains are read all the same."""

    def body(engine: InProcessEngine, residual: Residual | None) -> tuple[list[float], float | None]:
        layout = Layout.of(NUMEL)
        state = BucketState(residual, dict(compressor.new_state(layout, torch.device("cpu"))))
        own = replace(work(engine.rank, ks=KS), state=state)
        path = collectives.variants(compressor, layout, engine.capabilities)[0]
        collective = collectives.build(compressor, path)
        observed = Observed(collective.exchange(own, engine.rank, engine.world_size), own, collective.error_feedback)
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        return observed.gains(), observed.report.sent

    left = Residual(torch.ones(NUMEL), torch.zeros(NUMEL))
    for residual in (None, left) if not compressor.error_feedback else (left,):
        for gains, sent in run_ranks(2, lambda engine, r=residual: body(engine, copy.deepcopy(r))):
            assert gains == sorted(gains)
            assert gains[-1] == pytest.approx(1.0)
            assert (sent is None) == (not compressor.error_feedback)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_norm_of_a_result_is_the_same_on_all_ranks(name: str) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor | None, torch.Tensor]:
        own = replace(work(engine.rank), probe=Probe(norm=True))
        collective = COLLECTIVES[name]
        observed = Observed(collective.exchange(own, engine.rank, engine.world_size), own, collective.error_feedback)
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        assert observed.report.sample is None
        return observed.report.norm, own.gradient

    (norm, result), (same, _) = run_ranks(2, body)
    assert norm == same == torch.linalg.vector_norm(result)
