"""Ranks tell each other where they wait, over MPI's name service or the launcher's server, beside all collectives."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hvd_compress.engines import rendezvous_arrivals
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.select import choose_arrivals
from hvd_compress.frontends.horovod.runtime_selection import hvd as runtime

LIMIT_S = 120.0
"""Only what never comes takes so long."""


@pytest.fixture(autouse=True)
def a_busy_machine_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_arrivals, "LIMIT_S", LIMIT_S)


def opened(process_set: Any = None) -> Arrivals:
    arrivals = choose_arrivals(process_set=process_set, api=runtime)
    arrivals.open()
    return arrivals


def settles(arrivals: Arrivals, wait: int, missing: tuple[int, ...]) -> bool:
    """Whether only these ranks are missing, when what the others have told has come."""
    deadline = time.monotonic() + LIMIT_S
    while len(arrivals.missing(wait)) > len(missing) and time.monotonic() < deadline:
        time.sleep(0.001)
    return arrivals.missing(wait) == missing


def test_each_rank_knows_who_waits_where(hvd: Any) -> None:
    arrivals = opened()
    others = tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    assert arrivals.missing(1) == others
    hvd.barrier()
    if hvd.rank() != 0:
        arrivals.announce(1)
    assert settles(arrivals, 1, missing=() if hvd.rank() == 0 else (0,))
    assert arrivals.missing(2) == others
    hvd.barrier()
    arrivals.announce(2)
    assert settles(arrivals, 2, missing=())
    assert arrivals.missing(1) == ()


def test_two_groups_do_not_hear_each_other(hvd: Any) -> None:
    first, second = opened(), opened()
    first.announce(1)
    assert settles(first, 1, missing=())
    assert second.missing(1) == tuple(rank for rank in range(hvd.size()) if rank != hvd.rank())
    hvd.barrier()


def test_a_process_set_counts_its_own_ranks(hvd: Any, some_ranks: Any) -> None:
    """By their numbers in the job."""
    if some_ranks.included():
        arrivals = opened(some_ranks)
        assert arrivals.missing(1) == tuple(rank for rank in some_ranks.ranks if rank != hvd.rank())
        hvd.barrier(process_set=some_ranks)
        arrivals.announce(1)
        assert settles(arrivals, 1, missing=())
    hvd.barrier()
