"""The network of an engine, on ranks in process that play to be on several hosts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UnsupportedError
from hvd_compress.planner.prices import Prices
from hvd_compress.planner.profiles import SystemProfile
from hvd_compress.profiler.system import measure_system
from tests.harness import alone

VERBS = {"allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "gather"}


def measured(hosts: tuple[int, ...]) -> list[SystemProfile]:
    return run_ranks(len(hosts), lambda engine: measure_system(engine, 0.05, "a test"), hosts=hosts)


def verbs(link: object) -> set[str]:
    return {curve.verb for curve in link.curves if curve.algorithm == "auto"}


def test_within_and_across_are_measured_in_groups_of_their_own() -> None:
    found = measured((0, 0, 0, 1, 1, 1))[0]
    assert (found.hosts, found.ranks_per_host, found.source) == (2, 3, "a test")
    assert verbs(found.within) == verbs(found.across) == VERBS
    curves = found.curves()
    assert (curves["within"].world_size, curves["across"].world_size) == (3, 2)
    for link in curves.values():
        for curve in link.by_key.values():
            assert all(0 < a <= b for a, b in pairwise(curve.times))


@pytest.mark.parametrize(("hosts", "used", "other"), [((0, 0), "within", "across"), ((0, 1), "across", "within")])
def test_a_link_that_connects_nobody_has_no_curves(hosts: tuple[int, ...], used: str, other: str) -> None:
    found = measured(hosts)[0]
    assert verbs(getattr(found, used)) == VERBS
    assert getattr(found, other).curves == ()
    assert set(found.curves()) == {used}


@pytest.mark.parametrize(
    ("name", "engine"), [("MPI", "mpi"), ("Horovod", "horovod"), ("torch", "torch"), ("in-process", None)]
)
def test_the_engine_is_kept(name: str, engine: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a request names it, for `plan make`."""
    monkeypatch.setattr(InProcessEngine, "name", name)
    assert measured((0, 0))[0].engine == engine


def test_all_ranks_leave_together_and_the_engine_goes_on() -> None:
    def body(engine: InProcessEngine) -> list[int]:
        measure_system(engine, 0.02)
        assert engine.take_calls() == [], "it belongs to no step"
        return engine.allgather_json(engine.rank)

    assert run_ranks(4, body, hosts=(0, 0, 1, 1)) == [[0, 1, 2, 3]] * 4


def test_uneven_hosts_are_refused_on_all_ranks() -> None:
    with pytest.raises(UnsupportedError, match=r"as many ranks on each, and there are \[2, 1\]"):
        measured((0, 0, 1))


def test_one_rank_has_no_network() -> None:
    with pytest.raises(UnsupportedError, match="one rank has no network"):
        measure_system(alone())


def test_the_planner_takes_the_curves() -> None:
    """Prices of a routine are those of its curve, not of alpha and beta."""
    found = measured((0, 0, 1, 1))[0]
    prices = Prices.__new__(Prices)
    prices._system = found
    for name, curves in found.curves().items():
        for verb in VERBS:
            assert prices._link_s(name, verb, 4096, 2) == curves.seconds(verb, "auto", 4096)
