"""STAR or VAR: what is decided from what ranks tell each other of their steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from hvd_compress.policies.roots import LEAST_STEPS, STARVED, RootChooser, Sight

ALIKE, ONE_HOLDS_MOST = (1.0, 1.0, 1.0, 1.0), (1.0, 0.01, 0.01, 0.01)
OWN, FOREIGN = 0.5, 0.1
"""Shares of what a rank holds that are sent: of the root, and of the others."""


def sight(root: int, held: Sequence[float]) -> Sight:
    sent = tuple((OWN if rank == root else FOREIGN) * norm for rank, norm in enumerate(held))
    return Sight(root, sent, tuple(held))


def run(held: Sequence[float], steps: int, chooser: RootChooser | None = None) -> tuple[RootChooser, list[str]]:
    """Let steps go by, of which the roots are those of what is used."""
    chooser, used = chooser or RootChooser(len(held)), []
    for step in range(steps):
        root = step % len(held) if chooser.used == "star" else max(range(len(held)), key=held.__getitem__)
        used.append(chooser.used)
        chooser.take([sight(root, held)])
    return chooser, used


def test_ranks_that_are_alike_take_turns() -> None:
    _, used = run(ALIKE, 200)
    assert set(used) == {"star"}


def test_where_one_rank_holds_most_its_indices_are_used() -> None:
    chooser, used = run(ONE_HOLDS_MOST, 200)
    assert used.index("var") == LEAST_STEPS
    assert set(used[LEAST_STEPS:]) == {"var"}
    assert "VAR would send 0.488 of the squared norm a step, and STAR 0.2" in chooser.reason


def test_var_is_given_up_where_it_gains_no_more_and_rests_longer_each_time() -> None:
    """It promises more than it keeps: what is left of a rank's gradient is not what it was."""
    chooser = RootChooser(4)
    used = []
    for step in range(400):
        used.append(chooser.used)
        if chooser.used == "star":
            chooser.take([sight(step % 4, ONE_HOLDS_MOST)])
        else:
            chooser.take([Sight(0, tuple(0.1 * held for held in ONE_HOLDS_MOST), ONE_HOLDS_MOST)])
    begins = [step for step in range(1, 400) if used[step - 1 : step + 1] == ["star", "var"]]
    rests = [later - earlier for earlier, later in itertools.pairwise(begins)]
    assert len(rests) >= 2
    assert rests == sorted(rests)
    assert rests[-1] >= 1.5 * rests[0]


def test_a_rank_that_is_starved_is_heard() -> None:
    chooser, _ = run(ONE_HOLDS_MOST, LEAST_STEPS)
    assert chooser.used == "var"
    for _ in range(STARVED * 4 + 2 * LEAST_STEPS):  # rank 3 holds as much as rank 0 now, and is never the largest
        chooser.take([sight(0, (1.0, 0.01, 0.01, 0.99))])
    assert chooser.used == "star"
    assert "rank 3" in chooser.reason


def test_what_not_all_ranks_saw_counts_for_nothing() -> None:
    assert Sight.of([(0.0, 1.0, 2.0), (math.nan,) * 3]) is None
    assert Sight.of([(1.0, 1.0, 2.0), (1.0, 3.0, 0.0)]) == Sight(1, (1.0, 3.0), (3.0, 3.0))


@pytest.mark.parametrize("size", [2, 3, 16, 64])
def test_each_rank_is_the_root_before_anything_is_decided(size: int) -> None:
    held = (1.0, *(0.01,) * (size - 1))
    _, used = run(held, 4 * max(size, LEAST_STEPS))
    assert used.index("var") >= 2 * size


def test_gradients_of_zero_decide_nothing() -> None:
    _, used = run((0.0, 0.0), 50)
    assert set(used) == {"star"}
