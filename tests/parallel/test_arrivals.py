"""Ranks tell each other where they wait, over MPI or the launcher's server, while no collective can run."""

from __future__ import annotations

import time
from typing import Any

from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.select import choose_arrivals

LIMIT_S = 120.0
"""Only what never comes takes so long."""


def heard(arrivals: Arrivals, place: int, absent: tuple[int, ...]) -> bool:
    """Whether only these ranks are absent, when what the others have told has come."""
    deadline = time.monotonic() + LIMIT_S
    while len(arrivals.absent(place)) > len(absent) and time.monotonic() < deadline:
        time.sleep(0.001)
    return arrivals.absent(place) == absent


def test_each_rank_knows_who_waits_where(hvd: Any) -> None:
    arrivals = choose_arrivals()
    others = tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    assert arrivals.absent(1) == others
    hvd.barrier()
    if hvd.rank() != 0:
        arrivals.arrive(1)
    assert heard(arrivals, 1, absent=() if hvd.rank() == 0 else (0,))
    assert arrivals.absent(2) == others
    hvd.barrier()
    arrivals.arrive(2)
    assert heard(arrivals, 2, absent=())
    assert arrivals.absent(1) == ()


def test_two_groups_do_not_hear_each_other(hvd: Any) -> None:
    first, second = choose_arrivals(), choose_arrivals()
    first.arrive(1)
    assert heard(first, 1, absent=())
    second.collect()
    assert second.absent(1) == tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    hvd.barrier()


def test_a_process_set_counts_its_own_ranks(hvd: Any, some_ranks: Any) -> None:
    if some_ranks.included():
        arrivals, own, size = choose_arrivals(some_ranks), some_ranks.rank(), some_ranks.size()
        assert arrivals.absent(1) == tuple(rank for rank in range(size) if rank != own)
        hvd.barrier(process_set=some_ranks)
        arrivals.arrive(1)
        assert heard(arrivals, 1, absent=())
    hvd.barrier()
