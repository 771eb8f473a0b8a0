"""What an exchange takes, from the phases of all ranks by their own clocks."""

from __future__ import annotations

import math

import pytest

from hvd_compress.papers.flexible.exchanges import exchange_times

AHEAD_S = (0.0, 100.0, -7.0)
"""How far the clock of each rank is ahead."""


def test_an_exchange_takes_as_long_as_if_all_had_come_to_it_at_once() -> None:
    """Rank 1 comes 2 s late in one, rank 2 in another, so that clocks can be told apart; each takes 0.25 s."""
    told: list[list[float]] = [[], [], []]
    for step in (0, 1, 2):
        for rank, clock in enumerate(AHEAD_S):
            began = 20.0 + 10.0 * step + (2.0 if rank == step else 0.0)
            told[rank] += [0.1, clock + began, clock + 22.25 + 10.0 * step, 0.2]
    times = exchange_times(told, 1)
    assert len(times) == 3
    for (exchange,) in times:
        assert exchange.seconds == pytest.approx(0.1 + 0.25 + 0.2, abs=0.13)  # clocks are known to half an exchange
        assert exchange.kernels_s == pytest.approx(0.3)


def test_compression_that_nobody_waits_for_does_not_count() -> None:
    """As that of all ranks but the root, with STAR; of two buckets, in two steps."""
    phases = [[0.1 if rank == 0 else math.nan, clock + 1.0, clock + 1.25, 0.2] for rank, clock in enumerate(AHEAD_S)]
    times = exchange_times([of * 4 for of in phases], 2)
    assert [len(step) for step in times] == [2, 2]
    for exchange in (each for step in times for each in step):
        assert exchange.kernels_s == pytest.approx(0.3)
        assert exchange.seconds == pytest.approx(0.3 + 0.25)


def test_without_steps_there_are_no_times() -> None:
    assert exchange_times([[], []], 3) == []
