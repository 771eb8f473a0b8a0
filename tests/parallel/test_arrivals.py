"""Ranks tell each other where they wait, over MPI or the launcher's server, while no collective can run."""

from __future__ import annotations

from typing import Any

from hvd_compress.engines.select import choose_arrivals


def everybody_has_told(hvd: Any) -> None:
    """A message that was sent before a barrier may still be under way behind it; Horovod's takes some milliseconds."""
    for _ in range(3):
        hvd.barrier()


def test_each_rank_knows_who_waits_where(hvd: Any) -> None:
    arrivals = choose_arrivals()
    others = tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    assert arrivals.absent(1) == others
    hvd.barrier()
    if hvd.rank() != 0:
        arrivals.arrive(1)
    everybody_has_told(hvd)
    assert arrivals.absent(1) == (() if hvd.rank() == 0 else (0,))
    assert arrivals.absent(2) == others
    hvd.barrier()
    arrivals.arrive(2)
    everybody_has_told(hvd)
    assert arrivals.absent(1) == arrivals.absent(2) == ()


def test_two_groups_do_not_hear_each_other(hvd: Any) -> None:
    first, second = choose_arrivals(), choose_arrivals()
    first.arrive(1)
    everybody_has_told(hvd)
    second.collect()
    assert first.absent(1) == ()
    assert second.absent(1) == tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    hvd.barrier()


def test_a_process_set_counts_its_own_ranks(hvd: Any, some_ranks: Any) -> None:
    if some_ranks.included():
        arrivals, own, size = choose_arrivals(some_ranks), some_ranks.rank(), some_ranks.size()
        assert arrivals.absent(1) == tuple(rank for rank in range(size) if rank != own)
        hvd.barrier(process_set=some_ranks)
        arrivals.arrive(1)
    everybody_has_told(hvd)
    if some_ranks.included():
        assert arrivals.absent(1) == ()
    hvd.barrier()
