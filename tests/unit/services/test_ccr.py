"""The communication-to-computation ratio, by hand."""

from __future__ import annotations

import math

import pytest

from hvd_compress.services.ccr import Ccr, StepRecord, ccr_of, interval_of


def test_who_waits_for_a_late_rank_does_not_communicate() -> None:
    """Rank 1 is 30 % slower: rank 0 waits 3 of its 12 s in the first collective, and then both are in step."""
    early, late = StepRecord(10.0, 12.0), StepRecord(13.0, 9.0)
    found = ccr_of([[early] * 3, [late] * 3])
    assert (found.communicate_s, found.backward_s) == (9.0, 13.0)
    assert found.ratio == pytest.approx(9 / 13)
    assert found.naive == pytest.approx(10.5 / 11.5)
    assert found.steps == 3
    assert found.lost_s == pytest.approx(27.0), "these steps could have hidden all"


def test_one_disturbed_step_of_three_counts_for_nothing() -> None:
    steps = [StepRecord(10.0, 20.0), StepRecord(50.0, 90.0), StepRecord(10.0, 22.0)]
    found = ccr_of([steps, steps])
    assert (found.communicate_s, found.backward_s) == (22.0, 10.0)
    assert str(found) == "CCR 2.2: 2.2e+04 ms of exchanges beside a backward pass of 1e+04 ms"
    assert found.lost_s == 30.0, "at most a backward pass a step is lost"


def test_without_a_backward_pass_there_is_no_ratio() -> None:
    assert math.isinf(Ccr(1.0, 0.0, 1.0, 0.0, 3, 0.0, 2).ratio)
    assert math.isinf(Ccr(1.0, 0.0, 1.0, 0.0, 3, 0.0, 2).naive)


@pytest.mark.parametrize(
    ("ccr", "interval"),
    [(0.2, 1), (1.0, 1), (1.01, 2), (2.1, 3), (3.5, 4), (4.0, 4), (8.0, 8), (8.1, 8), (100.0, 8), (math.inf, 1)],
)
def test_the_interval_is_the_next_whole_number_eight_at_most(ccr: float, interval: int) -> None:
    """The paper: ResNet-101 has 2.1 and takes 3, GPT-2 has 3.5 and takes 4, VGG-19 has 4.0 and takes 4."""
    assert interval_of(ccr) == interval
