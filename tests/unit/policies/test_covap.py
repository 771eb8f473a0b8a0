"""Buckets that are skipped: who is sent when, and that nothing is lost."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.compressors import Cast
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.policies import Covap
from hvd_compress.request.request import Request
from tests.harness import (
    SHAPES,
    alone,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
    on_engine,
    remembered,
)

INTERVAL = 3
REQUEST = Request(Cast(), policy=Covap(INTERVAL))


def given(rank: int, step: int) -> torch.Tensor:
    """The gradient of a rank, in the order of flat_gradient()."""
    return torch.cat([gradient(name, shape, rank, step).reshape(-1) for name, shape in SHAPES.items()])


def test_bucket_t_is_sent_in_step_s_iff_t_plus_s_is_a_multiple() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        sent, bytes_ = [], []
        for step in range(7):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            buckets = list(optimizer.decisions)  # all three, by number
            sent.append([bool(parameters[names[0]].grad.any()) for names in buckets])
            bytes_.append(optimizer.last_step.sent_bytes)
            optimizer.zero_grad()
        return sent, bytes_, [sum(parameters[n].numel() for n in names) * 4 for names in buckets]

    for sent, bytes_, sizes in run_ranks(2, body):
        assert len(sizes) == 3
        expected = [[(number + step) % INTERVAL == 0 for number in range(3)] for step in range(7)]
        assert sent == expected
        # Two ranks: an allreduce sends as many bytes as the bucket has.
        assert bytes_ == [sum(size for size, goes in zip(sizes, row, strict=True) if goes) for row in expected]


def test_what_is_not_sent_is_left() -> None:
    """What came back and what ranks still hold is what was given, in sum."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        came = 0
        for step in range(8):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            came = came + flat_gradient(parameters)
        return came, flat_residual(optimizer, parameters)

    ranks = run_ranks(3, body)
    total = sum(given(rank, step) for rank in range(3) for step in range(8)) / 3
    left = sum(residual for _, residual in ranks) / 3
    assert left.any()
    torch.testing.assert_close(ranks[0][0] + left, total, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(came, ranks[0][0]) for came, _ in ranks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_in_a_skipped_bucket_is_dropped(bad: float) -> None:
    """Other ranks cannot know: nobody waits, the step counts, and the residual of that bucket stays on that rank."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        hurts = 0
        for step in range(8):
            skipped = [names[0] for names, d in optimizer.decisions.items() if d.scheme == "skip" and len(names) > 1]
            before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
            hurt = skipped[0] if engine.rank == 1 and skipped and step in (4, 5) else None
            hurts += hurt is not None
            loss = sum(
                (p * gradient(n, tuple(p.shape), engine.rank, step)).sum() * (bad if n == hurt else 1.0)
                for n, p in parameters.items()
            )
            loss.backward()
            optimizer.step()
            assert optimizer.last_step.finite
            if hurt is not None:
                after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
                (mates,) = [names for names in optimizer.decisions if hurt in names]
                assert all(torch.equal(before[name], after[name]) for name in mates)  # the whole bucket's
                others = [n for names, d in optimizer.decisions.items() for n in names if n not in mates]
                assert any(not torch.equal(before[n], after[n]) for n in others)
            optimizer.zero_grad()
        assert (hurts > 0) == (engine.rank == 1)
        return optimizer.last_step.nonfinite_steps, [p.detach().clone() for p in parameters.values()]

    ranks = run_ranks(2, body)
    assert [count for count, _ in ranks] == [0, 0]
    assert all(torch.isfinite(p).all() for p in ranks[0][1])
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][1], ranks[1][1], strict=True))


def test_a_step_that_is_not_finite_changes_no_residual_of_a_skipped_bucket() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUEST)
        for step in range(5):
            sent = [names[0] for names, d in optimizer.decisions.items() if d.scheme != "skip"]
            before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
            hurt = sent[0] if engine.rank == 1 and step == 4 else None
            loss = sum(
                (p * gradient(n, tuple(p.shape), engine.rank, step)).sum() * (float("nan") if n == hurt else 1.0)
                for n, p in parameters.items()
            )
            loss.backward()
            optimizer.synchronize()
            optimizer.zero_grad()
        after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        assert not optimizer.last_step.finite
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)

    run_ranks(2, body)


def test_residuals_survive_a_checkpoint() -> None:
    def train(optimizer, parameters, steps) -> list[torch.Tensor]:
        for step in steps:
            optimizer.zero_grad()
            backward(parameters, 0, step)
            optimizer.step()
        return [p.detach().clone() for p in parameters.values()]

    parameters, optimizer = on_engine(alone(), REQUEST)
    train(optimizer, parameters, range(4))
    state, values = optimizer.state_dict(), [p.detach().clone() for p in parameters.values()]
    expected = train(optimizer, parameters, range(4, 8))
    parameters, resumed = on_engine(alone(), REQUEST)
    with torch.no_grad():
        for parameter, value in zip(parameters.values(), values, strict=True):
            parameter.copy_(value)
    resumed.load_state_dict(state)
    for a, b in zip(train(resumed, parameters, range(4, 8)), expected, strict=True):
        assert torch.equal(a, b)


def test_float64_is_sent_in_each_step() -> None:
    parameters = make_parameters(dtype=torch.float64)
    optimizer = make_optimizer(parameters, REQUEST, alone, 0, 1)
    for step in range(3):
        backward(parameters, 0, step)
        optimizer.synchronize()
        assert all(parameter.grad.any() for parameter in parameters.values())
        optimizer.zero_grad()


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "4"])
def test_an_interval_is_a_number_of_steps(interval: object) -> None:
    with pytest.raises(ConfigError, match=r"interval = .* must be a whole number of steps"):
        Covap(interval)  # type: ignore[arg-type]
