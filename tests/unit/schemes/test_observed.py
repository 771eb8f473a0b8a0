"""What is seen of an exchange: the gains of all ratios, and what it really sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.states import BucketState, Residual
from hvd_compress.schemes import AllGather, ARTopk, Dense, Observed, Probe, Scheme, Work

NUMEL, KS = 5000, (5, 50, 500, 5000)
SCHEMES = {
    "allgather": AllGather(TopK(0.01)),
    "star": ARTopk(TopK(0.01), Path("star")),
    "var": ARTopk(TopK(0.01), Path("var")),
    "dense": Dense(Cast()),
}


def work(rank: int, dtype: torch.dtype = torch.float32, ks: tuple[int, ...] | None = None) -> Work:
    generator = torch.Generator().manual_seed(rank)
    gradient = (torch.randn(NUMEL, generator=generator) ** 3).to(dtype)
    residual = torch.randn(NUMEL, generator=generator)
    state = BucketState(Residual(residual, torch.full((NUMEL,), torch.nan)))
    return Work(gradient, Layout.of(NUMEL, dtype=dtype), 0, 0, 0.5, state, probe=Probe(ks=ks))


def run(engine: InProcessEngine, scheme: Scheme, ks: tuple[int, ...] | None, dtype: torch.dtype):
    own = work(engine.rank, dtype, ks)
    exchange = scheme.exchange(own, engine.rank, engine.world_size)
    observed = Observed(exchange, own) if ks is not None else exchange
    observed.encode()
    observed.communicate(engine)
    assert bool(observed.decode())
    return own, observed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", SCHEMES)
def test_it_changes_nothing_and_sees_what_is_sent(name: str, dtype: torch.dtype) -> None:
    plain = run_ranks(2, lambda engine: run(engine, SCHEMES[name], None, dtype))
    watched = run_ranks(2, lambda engine: run(engine, SCHEMES[name], KS, dtype))
    for rank, ((expected, _), (own, observed)) in enumerate(zip(plain, watched, strict=True)):
        assert torch.equal(own.gradient, expected.gradient)
        assert torch.equal(own.pending, expected.pending)
        fresh = work(rank, dtype)
        corrected = fresh.gradient.double() + fresh.residual.double()
        squares = corrected.square().sort(descending=True).values
        *gains, sent = observed.gains()
        assert gains == pytest.approx([float(squares[:k].sum() / squares.sum()) for k in KS], rel=0.02)
        left = own.pending.double().square().sum()
        assert sent == pytest.approx(float(1 - left / squares.sum()), abs=1e-4)
    by_own_choice = watched[0][1].gains()  # rank 0 is the root of STAR's first step; everybody's of an all-gather
    if name in ("allgather", "star"):
        assert by_own_choice[-1] == pytest.approx(by_own_choice[1], rel=0.02)
    assert by_own_choice[-1] > 0.99 or name != "dense"


def test_without_ratios_it_sees_only_what_is_sent() -> None:
    for _, observed in run_ranks(2, lambda engine: run(engine, SCHEMES["allgather"], (), torch.float32)):
        (sent,) = observed.gains()
        assert 0 < sent < 1


def test_nothing_to_send_is_sent_in_full() -> None:
    def body(engine: InProcessEngine) -> list[float]:
        state = BucketState(Residual(torch.zeros(100), torch.zeros(100)))
        zero = Work(torch.zeros(100), Layout.of(100), 0, 0, 1.0, state, probe=Probe(ks=(1,)))
        observed = Observed(SCHEMES["allgather"].exchange(zero, engine.rank, engine.world_size), zero)
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        return observed.gains()

    assert run_ranks(2, body) == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("name", SCHEMES)
def test_a_coefficient_of_the_residual_counts(name: str) -> None:
    """The same is seen as of a residual that is half as large."""

    def body(engine: InProcessEngine, coefficient: float) -> tuple[list[float], torch.Tensor]:
        own = replace(work(engine.rank, ks=KS), coefficient=coefficient)
        own.state.residual.current.mul_(0.5 / coefficient)
        scheme = SCHEMES[name]
        observed = Observed(scheme.exchange(own, engine.rank, engine.world_size), own)
        observed.encode()
        observed.communicate(engine)
        observed.decode()
        return observed.gains(), own.gradient

    halves, wholes = (run_ranks(2, lambda engine, c=c: body(engine, c)) for c in (0.5, 1.0))
    for (gains, result), (expected, same) in zip(halves, wholes, strict=True):
        assert gains == expected
        assert torch.equal(result, same)
