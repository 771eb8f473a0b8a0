"""Successive halving, told a step late as policies are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hvd_compress.policies.auto.search import BUDGET, FIRST, MANY, Search
from hvd_compress.services.agreement import StepTimes


def searched(taken: Sequence[float | StepTimes], predicted: Sequence[float] | None = None) -> tuple[Search, list[int]]:
    """Return a search that is over, and the arms of all steps: an arm's take what is given, or do nothing but wait."""
    steps = [each if isinstance(each, StepTimes) else StepTimes(each, each, each) for each in taken]
    search, asked = Search([1.0] * len(steps), predicted or [0.0] * len(steps)), []
    while search.choice is None:
        asked.append(search.next())
        if len(asked) > 1:
            search.record(asked[-2], steps[asked[-2]])
    return search, asked


def test_the_step_that_waits_behind_the_first_round_counts_in_the_second() -> None:
    """So each of the second round is seen as often."""
    search, asked = searched([1.0, 0.8, 0.9, 0.95])
    assert search.choice == 1
    assert [len(own) for own in search.taken] == [5, 5, 5, FIRST]
    assert len(asked) == BUDGET


def test_of_many_arms_each_is_seen_once() -> None:
    search, asked = searched([1.0, 0.8, 0.9, 0.95, 0.97, 0.98][: MANY + 1])
    assert search.choice == 1
    assert [len(own) for own in search.taken][3:] == [1] * (MANY - 2)
    assert len(asked) <= BUDGET + 1


def test_where_few_are_left_they_are_seen_the_more() -> None:
    search, asked = searched([1.0, 0.6, 0.62, 0.7], predicted=[2.0, 0.1, 0.1, 0.1])
    assert search.choice == 1
    assert [len(own) for own in search.taken] == [0, 8, 8, FIRST]
    assert len(asked) <= BUDGET + 1


def test_it_begins_with_what_curves_call_the_best() -> None:
    _, asked = searched([1.0, 0.9, 0.5], predicted=[0.4, 0.3, 0.1])
    assert asked[:FIRST] == [2] * FIRST


def test_what_loses_nothing_is_taken_unless_it_is_beaten() -> None:
    """By three per cent."""
    assert searched([1.0, 0.98])[0].choice == 0
    assert searched([1.0, 0.9])[0].choice == 1


def test_what_is_hopeless_is_not_compared_with_the_best() -> None:
    _, asked = searched([1.0, 3.0, 0.9])
    assert asked.count(1) == FIRST, "its first time is known a step late"


def test_what_collectives_alone_make_too_slow_is_never_tried() -> None:
    _, asked = searched([1.0, 0.9, 0.9], predicted=[0.5, 0.4, 3.0])
    assert 2 not in asked


@pytest.mark.parametrize(("summed_s", "choice"), [(0.1, 1), (0.5, 0)])
def test_a_longer_backward_pass_counts_as_far_as_exchanges_can_have_made_it(summed_s: float, choice: int) -> None:
    """Else it was another batch, or a busy host."""
    steps = [StepTimes(1.5, 1.3, 0.5, 0.9), StepTimes(1.5, 1.3, 0.2, summed_s), StepTimes(1.55, 1.35, 0.55, 0.9)]
    assert [times.before_s for times in steps] == pytest.approx([1.0, 1.3, 1.0])
    search, _ = searched(steps)
    assert search.choice == choice


def test_an_arm_whose_whole_steps_are_longer_is_not_taken() -> None:
    """Though it waits for less: what it takes was not seen."""
    search, _ = searched([StepTimes(1.5, 1.3, 0.5, 0.1), StepTimes(1.8, 1.6, 0.2, 0.1)])
    assert search.choice == 0
