"""Clocks of ranks, found from when exchanges began and ended."""

from __future__ import annotations

import random

import pytest

from hvd_compress.papers.flexible.clocks import offsets

APART = (0.0, 1000.0, -0.25, 17.5)


def told(late: list[tuple[float, ...]], takes: float) -> tuple[list[list[float]], list[list[float]]]:
    """Return when each exchange began and ended on each rank, by its own clock; it takes as long from the last start.

    Args:
        late: by exchange, how late each rank comes.
    """
    starts = [[10.0 * n + row[rank] - APART[rank] for n, row in enumerate(late)] for rank in range(len(APART))]
    ends = [[10.0 * n + max(row) + takes - APART[rank] for n, row in enumerate(late)] for rank in range(len(APART))]
    return starts, ends


def test_where_ranks_are_in_step_clocks_are_exact() -> None:
    assert offsets(*told([(0.0,) * 4] * 3, 0.05)) == pytest.approx(APART)


def test_where_each_rank_is_late_now_and_then_they_are_off_by_half_an_exchange_at_most() -> None:
    generator = random.Random(1)
    late = [tuple(generator.expovariate(10.0) for _ in APART) for _ in range(20)]
    late += [tuple(0.5 * (rank == last) for rank in range(len(APART))) for last in range(len(APART))]
    assert offsets(*told(late, 0.02)) == pytest.approx(APART, abs=0.01)


def test_a_rank_that_is_always_late_is_believed_half() -> None:
    """Nothing tells such a rank from one whose clock is behind."""
    found = offsets(*told([(0.0, 0.0, 0.0, 0.3)] * 5, 0.02))
    assert found[:3] == pytest.approx(APART[:3])
    assert found[3] == pytest.approx(APART[3] - 0.15)


def test_without_exchanges_nothing_is_known() -> None:
    assert offsets([[], []], [[], []]) == [0.0, 0.0]
