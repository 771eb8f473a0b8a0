"""Calibration: bounded, within its budget, and the same on every rank."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.cost.calibrate import SIZES, Calibrator, nearest
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.inprocess import InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError
from tests.unit.cost.played import follow

KEYS = [("allreduce", "ring"), ("broadcast", "binomial")]
EVERY = [
    *KEYS,
    *((verb, "auto") for verb in ("allreduce", "broadcast", "allgather", "alltoall", "reduce_scatter", "gather")),
]


def test_all_ranks_hold_the_same_curves():
    """The mean over ranks; of a broadcast, whose root is done when it has sent, the time of the last one."""
    costs = Formulas(1e-3, 1e-8, 3)

    def body(engine):
        follow(engine, costs, slower=1 + engine.rank)
        return Calibrator(engine, EVERY, 0.0).run(), list(engine.calls)

    (first, calls), *others = run_ranks(3, body)
    assert all(curves == first for curves, _ in others)
    assert list(first.by_key) == EVERY
    for key, curve in first.by_key.items():
        assert curve.sizes == SIZES[:2]  # without which there is no curve
        factor = 3 if key[0] in ("broadcast", "gather") else 2
        assert curve.times == tuple(pytest.approx(factor * costs.seconds(*key, size)) for size in curve.sizes)
    assert calls == [], "the step that runs beside it counts its own collectives alone"


def test_the_budget_leaves_out_what_would_exceed_it():
    """alpha 1 ms and 1 us a byte: 1 KiB takes about 5 ms, 8 KiB 40 ms, and 1 MiB several seconds."""

    def body(engine):
        launched = follow(engine, Formulas(1e-3, 1e-6, 4))
        calibrator = Calibrator(engine, KEYS, 1.0, sizes=(1024, 2048, 1 << 20, 4096), samples=1)
        calibrator.run()
        return [size for verb, _, size in launched if verb in ("allreduce", "broadcast")]

    assert run_ranks(4, body) == [[1024, 1024, 2048, 2048, 4096, 4096]] * 4


def test_each_point_is_measured_as_often_as_the_budget_lasts():
    def body(engine):
        launched = follow(engine, Formulas(1e-6, 1e-9, 2))
        curves = Calibrator(engine, KEYS, 1e9, sizes=(64, 128), samples=2).run()
        return [size for verb, _, size in launched if verb in ("allreduce", "broadcast")], curves.by_key[KEYS[0]].sizes

    assert run_ranks(2, body) == [([64] * 4 + [128] * 4, (64, 128))] * 2


def test_a_rank_that_reports_nothing_ends_in_an_error():
    """The engine's time-out, as in the pipeline; no rank hangs."""

    def body(engine):
        if engine.rank != 1:
            Calibrator(engine, KEYS, 3.0).run()

    with pytest.raises(CommunicationError, match=r"waited 0\.3 s for rank|failed"):
        run_ranks(3, body, timeout_s=0.3)


def test_one_rank_alone():
    curves = run_ranks(1, lambda engine: Calibrator(engine, KEYS, 0.0).run())[0]
    assert curves.seconds("allreduce", "ring", 4096) > 0


def priced(costs: Formulas) -> Curves:
    """Curves of allreduce as the formulas say."""
    sizes, key = (1024, 65_536, 262_144), ("allreduce", "auto")
    return Curves(2, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes))})


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.8, True), (3.0, False), (0.3, False)])
def test_saved_curves_are_held_against_the_network(slower, holds):
    saved = priced(Formulas(1e-3, 1e-8, 2))
    fresh = priced(Formulas(slower * 1e-3, slower * 1e-8, 2))
    assert nearest(fresh, [saved], 2.0) == (saved if holds else None)
    assert nearest(fresh, [], 2.0) is None


def test_a_change_of_bandwidth_alone_is_a_change():
    """Small messages take what they took."""
    assert nearest(priced(Formulas(1e-3, 1e-7, 2)), [priced(Formulas(1e-3, 1e-8, 2))], 2.0) is None


def test_saved_curves_that_say_nothing_of_small_messages_are_of_another_network():
    saved = Curves(2, {("allreduce", "auto"): Curve((1 << 20, 1 << 21), (1.0, 3.0))})  # below zero at 1 KiB
    assert nearest(priced(Formulas(1e-3, 1e-8, 2)), [saved], 2.0) is None


def test_the_nearest_of_saved_curves_counts():
    idle, busy, other = (priced(Formulas(alpha, 1e-8, 2)) for alpha in (1e-3, 1.8e-3, 0.1))
    assert nearest(priced(Formulas(1.7e-3, 1e-8, 2)), [idle, busy, other], 2.0) == busy


def test_a_broadcast_takes_each_root_in_turn(monkeypatch):
    roots = []

    def body(engine):
        if engine.rank == 0:
            broadcast = engine._broadcast
            monkeypatch.setattr(
                engine, "_broadcast", lambda x, root, name: (roots.append(root), broadcast(x, root, name))
            )
        Calibrator(engine, [("broadcast", "auto")], 1e9, sizes=(64, 128, 256), samples=1).run()

    run_ranks(3, body)
    assert sorted(roots) == [0, 1, 2]


@pytest.mark.parametrize(
    "options", [{"budget_s": -1.0}, {"budget_s": float("nan")}, {"samples": 0}, {"sizes": ()}, {"keys": ()}]
)
def test_bad_settings_are_a_config_error(options):
    with pytest.raises(ConfigError, match="cannot calibrate"):
        Calibrator(InProcessWorld(1).engine(0), **{"keys": KEYS, "budget_s": 1.0, **options})


def test_alltoall_can_be_measured_too():
    def body(engine):
        curves = Calibrator(engine, [("alltoall", "auto")], 0.0, sizes=(64,), samples=1).run()
        return curves.seconds("alltoall", "auto", 64)

    first, second = run_ranks(2, body)
    assert first == second > 0
    assert torch.isfinite(torch.tensor(first))
