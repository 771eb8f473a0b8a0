"""The network of an engine, on ranks in process that play to be on several hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.base import Call
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UnsupportedError
from hvd_compress.papers.espresso.profiler.system import measure_system, require_measurable
from hvd_compress.profiler.profiles import SystemProfile
from tests.harness import alone

VERBS = {"allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "gather"}


def measured(hosts: tuple[int, ...], budget_s: float = 0.05) -> list[SystemProfile]:
    return run_ranks(len(hosts), lambda engine: measure_system(engine, budget_s, "a test"), hosts=hosts)


def verbs(link: object) -> set[str]:
    return {curve.verb for curve in link.curves if curve.algorithm == "auto"}


def test_a_profile_tells_how_many_buckets_are_in_flight() -> None:
    """As the engine would have them, or as a user has asked for."""

    def profile(engine: InProcessEngine, asked: int | None) -> int | None:
        engine.tracks_asked = asked
        return measure_system(engine, 0.01).in_flight

    for asked, found in ((None, 2), (1, 1), (4, 4)):
        assert run_ranks(2, partial(profile, asked=asked), hosts=(0, 1)) == [found] * 2


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


LINKS = {"within": (5e-6, 1e-10), "across": (3e-4, 8e-9)}
"""Seconds of a message, and of a byte: 10 GB/s and 125 MB/s."""


def played(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Call, str, int], float]) -> None:
    """Have collectives take what a function of call, link and number of ranks says."""
    note = InProcessEngine.note

    def instead(engine: InProcessEngine, call: Call) -> None:
        link = "within" if len(set(engine.hosts)) == 1 else "across"
        note(engine, replace(call, seconds=seconds(call, link, engine.world_size)))

    monkeypatch.setattr(InProcessEngine, "note", instead)


def by_formula(call: Call, link: str, ranks: int) -> float:
    return Formulas(*LINKS[link], ranks).seconds(call.verb, call.algorithm, call.tensor_bytes)


def without(monkeypatch: pytest.MonkeyPatch, **lacking: object) -> None:
    """Have engines lack what others lack, too."""
    make = InProcessEngine.__init__

    def instead(engine: InProcessEngine, *arguments: object, **named: object) -> None:
        make(engine, *arguments, **named)
        engine.capabilities = replace(engine.capabilities, **lacking)

    monkeypatch.setattr(InProcessEngine, "__init__", instead)


@pytest.mark.parametrize("algorithms", [True, False], ids=["forced", "auto alone"])
@pytest.mark.parametrize(
    ("hosts", "ranks_by_link"),
    [
        ((0, 0, 0, 1, 1, 1), {"within": 3, "across": 2}),
        ((0, 1, 2, 0, 1, 2), {"within": 2, "across": 3}),
        ((0, 0), {"within": 2}),
        ((0, 1), {"across": 2}),
    ],
)
def test_each_link_has_its_own_alpha_and_beta(
    hosts: tuple[int, ...], ranks_by_link: dict[str, int], algorithms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those by which collectives take their time, of groups within a host alone, and of one rank a host alone."""
    played(monkeypatch, by_formula)
    if not algorithms:
        without(monkeypatch, algorithms=(), broadcasts=(), allgathers=())
    found = measured(hosts, budget_s=0.0)[0]
    curves = found.curves()
    assert set(curves) == set(ranks_by_link)
    for name, ranks in ranks_by_link.items():
        alpha_s, s_per_byte = LINKS[name]
        link = getattr(found, name)
        assert link.alpha_us == pytest.approx(1e6 * alpha_s, rel=1e-6)
        assert link.bytes_per_s == pytest.approx(1 / s_per_byte, rel=1e-6)
        costs = Formulas(alpha_s, s_per_byte, ranks)
        for (verb, algorithm), curve in curves[name].by_key.items():
            expected = [costs.seconds(verb, algorithm, size) for size in curve.sizes]
            assert list(curve.times) == pytest.approx(expected)


def test_a_link_that_is_all_latency_is_as_fast_as_its_largest_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the collective that has moved its bytes fastest; each takes as long at all sizes."""
    played(monkeypatch, lambda call, _, ranks: 1e-3 if call.verb == "gather" else 2e-3)
    without(monkeypatch, algorithms=(), broadcasts=(), allgathers=())
    found = measured((0, 0), budget_s=0.0)[0].within  # of 1 and of 256 KiB
    assert found.bytes_per_s == pytest.approx(256 * 1024 / 1e-3)


def test_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is the two sizes without which there is no curve; with much, all seven."""
    played(monkeypatch, by_formula)
    without(monkeypatch, algorithms=())
    for budget_s, sizes in ((0.0, 2), (1e6, 7)):
        assert {len(curve.bytes) for curve in measured((0, 0), budget_s)[0].within.curves} == {sizes}


def test_hosts_measure_within_and_then_across_while_all_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is late within is waited for, and nobody leaves before the leaders have measured."""
    seen: list[str] = []

    def seconds(call: Call, link: str, ranks: int) -> float:
        if link == "within" and ranks == 3:
            time.sleep(1e-3)
        seen.append(f"{link} {ranks}")
        return by_formula(call, link, ranks)

    played(monkeypatch, seconds)

    def body(engine: InProcessEngine) -> None:
        measure_system(engine, 0.0)
        seen.append("left")

    run_ranks(6, body, hosts=(0, 0, 0, 1, 1, 1))
    first, last = seen.index("across 2"), len(seen) - 1 - seen[::-1].index("across 2")
    assert "within 3" not in seen[first:]
    assert seen.count("left") == 6
    assert "left" not in seen[:last]


def test_groups_are_needed_for_several_hosts_of_several_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, splits=False)
    for hosts in ((0, 0), (0, 1, 2)):
        run_ranks(len(hosts), require_measurable, hosts=hosts)
        assert verbs(measured(hosts)[0].within if hosts == (0, 0) else measured(hosts)[0].across) == VERBS
    for call in (require_measurable, measure_system):
        with pytest.raises(UnsupportedError, match="within hosts and across cannot be measured: it takes groups"):
            run_ranks(4, call, hosts=(0, 0, 1, 1))


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
