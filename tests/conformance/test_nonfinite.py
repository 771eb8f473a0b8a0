"""A non-finite gradient on one rank is seen by all in that step, and leaves no trace."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.brought import brought
from tests.conformance.cases import Case, where
from tests.conformance.runs import Run, run
from tests.harness import REQUESTS, SHAPES, flat_gradient, flat_residual, gradient, on_engine

EVEN = dict(brought("EVEN"))
VALUES = (math.nan, -math.inf)


@where(lambda case: case.size > 1)
def test_all_ranks_see_it_and_no_residual_changes(
    case: Case, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every other step the last element of a parameter is bad on one rank: two of them in a case, parameters and
    values in turn from case to case; in the whole product each case has all."""
    everything = [(name, value) for name in SHAPES for value in VALUES]
    first = 2 * case.number % len(everything)
    bad = everything if pytestconfig.getoption("--whole-product") else everything[first : first + 2]
    guilty = case.number % case.size

    def draw(name: str, shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
        drawn = gradient(name, shape, rank, step)
        place, value = bad[min(step // 2, len(bad) - 1)]
        if step % 2 == 1 and (name, rank) == (place, guilty):
            drawn.view(-1)[-1] = value
        return drawn

    ranks = run(case, steps=2 * len(bad) + 1, draw=draw)
    for number, rank in enumerate(ranks):
        for step, (place, _) in enumerate(bad):
            spoilt, after = rank.steps[2 * step + 1 : 2 * step + 3]
            assert not torch.isfinite(spoilt.result).all(), f"{place}: rank {number} does not see it"
            assert not spoilt.finite
            assert torch.equal(spoilt.residual_before, spoilt.residual_after), f"{place}: rank {number}: new residual"
            assert torch.isfinite(after.result).all(), f"{place}: the step after is poisoned"
    if case.name in EVEN:  # shares out where selections are uneven, as values make them
        monkeypatch.setattr(*EVEN[case.name])
        ranks = run(case, steps=len(ranks[0].steps), draw=draw)
    if len(set(messages := sent(ranks))) > 1:  # the collectives of some follow the number of the step
        assert messages == sent(run(case, steps=len(ranks[0].steps), draw=gradient)), "an extra collective was spent"


def sent(ranks: Run) -> list[int]:
    """Return how many messages all ranks have sent in each step but the first."""
    return [
        sum(step.sent_messages for step in steps) for steps in zip(*(rank.steps[1:] for rank in ranks), strict=True)
    ]


def test_a_sum_that_overflows_counts_as_non_finite() -> None:
    """Each rank's values are finite; their sum is not: residuals must stay, as nothing of it can be applied."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["star-all"])
        (parameters["odd"] * 3e38).sum().backward()
        optimizer.synchronize()
        return flat_gradient(parameters), flat_residual(optimizer, parameters), of(optimizer).last_step.finite

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
            counts.append(of(optimizer).last_step.nonfinite_steps)
            optimizer.zero_grad()
        return counts

    assert run_ranks(2, body) == [[0, 1, 1, 2, 2]] * 2
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelname == "WARNING"
    assert "step 1: gradients are NaN or infinite on some rank, in bucket " in message
    assert "(second.weight)" in message
    assert "last_step.nonfinite_steps counts such steps" in message
