"""The time to a loss by local steps, as predicted."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_compress.cost.local_steps import COUNTS, LocalStepsCost


def best(**known: Any) -> int:
    return LocalStepsCost(**{"step_s": 1.0, "exchange_s": 1.0, "cosine": 0.1, "ranks": 4, **known}).best()


def test_the_slower_an_exchange_the_more_steps_between_two() -> None:
    found = [best(exchange_s=exchange_s) for exchange_s in (0.0, 0.1, 0.5, 2.0, 8.0, 100.0)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, COUNTS[-1])


def test_ranks_that_learn_the_same_lose_nothing_by_many_steps() -> None:
    assert best(exchange_s=0.1, cosine=1.0) == COUNTS[-1]
    assert best(exchange_s=0.1, cosine=0.0) == 1


def test_an_exchange_that_is_hidden_costs_nothing() -> None:
    """Then the fewest steps that hide it are the best, as it lands before the next one begins."""
    assert best(exchange_s=2.0, delay=2, cosine=0.0) == 2
    hidden = LocalStepsCost(1.0, 4.0, 0.1, 4, delay=4)
    assert hidden.seconds(4) == 1.0
    assert hidden.seconds(2) == 2.0


def test_what_one_rank_learns_alone_is_as_stated() -> None:
    found = LocalStepsCost(1.0, 1.0, 0.0, 4)
    assert found.steps(1) == 1
    assert found.steps(4) == pytest.approx(1.5)
    assert found.steps(10**8) == pytest.approx(2, rel=1e-3)
    assert LocalStepsCost(1.0, 1.0, 1.0, 4).steps(32) == 1
