"""Calibration: bounded, within its budget, and the same on every rank."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.cost.calibrate import Calibrator, calibrate, matching, measurable
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.inprocess import InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError
from tests.unit.cost.played import follow

KEYS = [("allreduce", "ring"), ("broadcast", "binomial")]


def test_all_ranks_hold_the_same_curves():
    """The mean over ranks; of a broadcast, whose root is done when it has sent, the time of the last one."""
    costs = Formulas(1e-3, 1e-8, 3)

    def body(engine):
        follow(engine, costs, slower=1 + engine.rank)
        return calibrate(engine, budget_s=0.0), list(engine.calls)

    (first, calls), *others = run_ranks(3, body)
    assert all(curves == first for curves, _ in others)
    assert set(first.by_key) == set(measurable(InProcessWorld(3).engine(0)))
    for key, curve in first.by_key.items():
        assert curve.sizes == (1024, 262_144)  # the two without which there is no curve
        factor = 3 if key[0] == "broadcast" else 2
        assert curve.times == tuple(pytest.approx(factor * costs.seconds(*key, size)) for size in curve.sizes)
    assert calls == [], "the step that runs beside it counts its own collectives alone"
    alpha, beta = first.fit()
    assert 2e-3 < alpha < 3e-3
    assert 2e-8 < beta < 3e-8


@pytest.mark.usefixtures("clock")
def test_hosts_are_known_as_in_a_session():
    """Or what "auto" is would not be what training uses."""

    def body(engine):
        calibrate(engine, budget_s=0.0)
        return engine.capabilities.hosts

    assert run_ranks(3, body) == [(0, 0, 0)] * 3


def test_the_budget_leaves_out_what_would_exceed_it():
    """alpha 1 ms and 1 us a byte: 1 KiB takes about 5 ms, 8 KiB 40 ms, and 1 MiB several seconds."""

    def body(engine):
        launched = follow(engine, Formulas(1e-3, 1e-6, 4))
        calibrator = Calibrator(engine, 1e9, sizes=(1024, 2048, 1 << 20, 4096), samples=1, keys=KEYS)
        calibrator._budget_s = 1.0  # its own clock is not the formulas'
        while not calibrator.advance(3):
            pass
        return [size for verb, _, size in launched if verb in ("allreduce", "broadcast")]

    assert run_ranks(4, body) == [[1024, 1024, 2048, 2048, 4096, 4096]] * 4


def test_each_call_measures_so_many():
    def body(engine):
        launched = follow(engine, Formulas(1e-6, 1e-9, 2))
        calibrator = Calibrator(engine, 1e9, sizes=(64, 128), samples=2, keys=KEYS)
        counts = []
        while not calibrator.done:
            before = len(launched)
            calibrator.advance(3)
            counts.append(sum(verb != "allgather" and verb != "alltoall" for verb, _, _ in launched[before:]))
        return counts, calibrator.advance(1), calibrator.curves().by_key[KEYS[0]].sizes

    assert run_ranks(2, body) == [([3, 3, 2], True, (64, 128))] * 2


def test_a_rank_that_reports_nothing_ends_in_an_error():
    """The engine's time-out, as in the pipeline; no rank hangs."""

    def body(engine):
        if engine.rank != 1:
            calibrate(engine)

    with pytest.raises(CommunicationError, match=r"waited 0\.3 s for rank|failed"):
        run_ranks(3, body, timeout_s=0.3)


def test_one_rank_alone():
    curves = run_ranks(1, lambda engine: calibrate(engine, budget_s=0.0))[0]
    assert curves.fit() == (0.0, 0.0)
    assert curves.seconds("allreduce", "auto", 4096) > 0


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.8, True), (3.0, False), (0.3, False)])
def test_saved_curves_are_held_against_the_network(slower, holds):
    costs, saved = Formulas(1e-3, 1e-8, 2), priced(Formulas(1e-3, 1e-8, 2))

    def body(engine):
        follow(engine, costs, slower * (1.1 if engine.rank else 0.9))
        return matching(engine, [saved])

    assert run_ranks(2, body) == [saved if holds else None] * 2


def priced(costs: Formulas) -> Curves:
    """Curves of allreduce as the formulas say."""
    sizes, key = (1024, 65_536, 262_144), ("allreduce", "auto")
    return Curves(2, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes))})


def test_a_change_of_bandwidth_alone_is_a_change():
    """Small messages take what they took."""
    saved = priced(Formulas(1e-3, 1e-8, 2))

    def body(engine):
        follow(engine, Formulas(1e-3, 1e-7, 2), 1.0)
        return matching(engine, [saved])

    assert run_ranks(2, body) == [None] * 2


def test_the_nearest_of_saved_curves_counts():
    idle, busy, other = (priced(Formulas(alpha, 1e-8, 2)) for alpha in (1e-3, 1.8e-3, 0.1))

    def body(engine):
        follow(engine, Formulas(1.7e-3, 1e-8, 2), 1.0)
        return matching(engine, [idle, busy, other])

    assert run_ranks(2, body) == [busy] * 2


def test_a_broadcast_takes_each_root_in_turn(monkeypatch):
    roots = []

    def body(engine):
        if engine.rank == 0:
            broadcast = engine._broadcast
            monkeypatch.setattr(
                engine, "_broadcast", lambda x, root, name: (roots.append(root), broadcast(x, root, name))
            )
        calibrator = Calibrator(engine, 0.0, sizes=(64, 128, 256), samples=1, keys=[("broadcast", "auto")])
        calibrator._budget_s = 1e9
        calibrator.advance(3)

    run_ranks(3, body)
    assert sorted(roots) == [0, 1, 2]


@pytest.mark.parametrize(
    "options", [{"budget_s": -1.0}, {"budget_s": float("nan")}, {"samples": 0}, {"sizes": ()}, {"keys": ()}]
)
def test_bad_settings_are_a_config_error(options):
    with pytest.raises(ConfigError, match="cannot calibrate"):
        Calibrator(InProcessWorld(1).engine(0), **options)


def test_alltoall_can_be_measured_too():
    def body(engine):
        calibrator = Calibrator(engine, 0.0, sizes=(64,), samples=1, keys=[("alltoall", "auto")])
        calibrator.advance(1)
        return calibrator.curves().seconds("alltoall", "auto", 64)

    first, second = run_ranks(2, body)
    assert first == second > 0
    assert torch.isfinite(torch.tensor(first))
