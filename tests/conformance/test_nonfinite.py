"""A non-finite gradient on one rank is seen by all in that step, and leaves no trace."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.harness import REQUESTS, SHAPES, backward, flat_gradient, flat_residual, on_engine

BAD_STEP, STEPS = 2, 4


def train(engine: InProcessEngine, request: str, bad: tuple[str, int, float] | None):
    """Return per step (result, residuals, messages that this rank sent); `bad` is parameter, rank and value."""
    parameters, optimizer = on_engine(engine, REQUESTS[request])
    history = []
    for step in range(STEPS):
        handle = None
        if bad is not None and step == BAD_STEP and engine.rank == bad[1]:

            def spoil(gradient: torch.Tensor) -> torch.Tensor:
                spoilt = gradient.clone()
                spoilt.view(-1)[-1] = bad[2]
                return spoilt

            handle = parameters[bad[0]].register_hook(spoil)
        before = engine.sent_messages
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        history.append(
            (flat_gradient(parameters).clone(), flat_residual(optimizer, parameters), engine.sent_messages - before)
        )
        optimizer.zero_grad()
        if handle is not None:
            handle.remove()
    return history


def messages(ranks: list[list[tuple[torch.Tensor, torch.Tensor, int]]]) -> list[int]:
    """Messages sent in each step, all ranks together."""
    return [sum(history[step][2] for history in ranks) for step in range(STEPS)]


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("name", REQUESTS)
def test_all_ranks_see_it_and_no_residual_changes(name: str, value: float) -> None:
    size = 3
    healthy = run_ranks(size, lambda engine: train(engine, name, None))
    for place in SHAPES:
        ranks = run_ranks(size, lambda engine, place=place: train(engine, name, (place, 1, value)))
        for rank, history in enumerate(ranks):
            result, residual, _ = history[BAD_STEP]
            assert not torch.isfinite(result).all(), f"{place}: rank {rank} does not see it"
            assert torch.equal(residual, history[BAD_STEP - 1][1]), f"{place}: residual of rank {rank} changed"
            assert torch.isfinite(history[BAD_STEP + 1][0]).all(), "the step after is poisoned"
        assert messages(ranks) == messages(healthy), f"{place}: an extra collective was spent"


def test_a_sum_that_overflows_counts_as_non_finite() -> None:
    """Each rank's values are finite; their sum is not: residuals must stay, as nothing of it can be applied."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["star-all"])
        (parameters["odd"] * 3e38).sum().backward()
        optimizer.synchronize()
        return flat_gradient(parameters), flat_residual(optimizer, parameters), optimizer.last_step.finite

    for result, residual, finite in run_ranks(2, body):
        assert not torch.isfinite(result).all()
        assert not residual.any()
        assert not finite


def test_they_are_counted_and_told_once_by_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    bad_steps = (1, 3)

    def body(engine: InProcessEngine) -> list[int]:
        parameters, optimizer = on_engine(engine, REQUESTS["topk-star"])
        counts = []
        for step in range(5):
            with torch.no_grad():
                parameters["second.weight"].fill_(float("inf") if step in bad_steps and engine.rank == 1 else 1.0)
            (parameters["second.weight"].square().sum() + sum(p.sum() for p in parameters.values())).backward()
            optimizer.synchronize()
            counts.append(optimizer.last_step.nonfinite_steps)
            optimizer.zero_grad()
        return counts

    assert run_ranks(2, body) == [[0, 1, 1, 2, 2]] * 2
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelname == "WARNING"
    assert "step 1: gradients are NaN or infinite on some rank, in bucket " in message
    assert "(second.weight)" in message
    assert "last_step.nonfinite_steps counts such steps" in message
