"""Curves of a few collectives: the same on all ranks, and the same in two jobs on one network."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.quick import ALIKE, SIZES, Lines, quick
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.unit.cost.played import follow

KEYS = [("alltoall", "auto"), ("allgather", "auto")]
RANKS = 3


def measured(folder: Path, costs: Formulas, budget_s: float = 0.5) -> list[tuple[Curves, bool]]:
    """What each rank of a job finds on a network of which formulas hold."""

    def body(engine: InProcessEngine) -> tuple[Curves, bool]:
        follow(engine, costs)
        return quick(engine, KEYS, budget_s, folder)

    return run_ranks(RANKS, body)


def test_all_ranks_hold_the_same_curves_of_what_was_asked_for(tmp_path: Path) -> None:
    costs = Formulas(1e-3, 1e-8, RANKS)
    (first, known), *others = measured(tmp_path, costs)
    assert not known
    assert others == [(first, False)] * (RANKS - 1)
    assert list(first.by_key) == KEYS
    for key, curve in first.by_key.items():
        assert curve.sizes[0] == SIZES[0]
        assert curve.times == tuple(pytest.approx(costs.seconds(*key, size)) for size in curve.sizes)


def test_without_a_budget_two_sizes_are_measured(tmp_path: Path) -> None:
    curves, _ = measured(tmp_path, Formulas(1e-3, 1e-8, RANKS), budget_s=0.0)[0]
    assert all(curve.sizes == SIZES[:2] for curve in curves.by_key.values())


def test_a_job_on_the_same_network_holds_the_curves_of_the_first(tmp_path: Path) -> None:
    first, _ = measured(tmp_path, Formulas(1e-3, 1e-8, RANKS))[0]
    for factor in (0.6, 1.0, 1.9):  # noise
        assert measured(tmp_path, Formulas(factor * 1e-3, factor * 1e-8, RANKS)) == [(first, True)] * RANKS


def test_another_network_has_curves_of_its_own_and_the_first_one_keeps_its(tmp_path: Path) -> None:
    networks = [Formulas(1e-3, 1e-8, RANKS), Formulas(1.5 * ALIKE * 1e-3, 1e-8, RANKS)]
    found = [measured(tmp_path, costs)[0] for costs in networks]
    assert [known for _, known in found] == [False, False]
    assert found[0][0] != found[1][0]
    assert [measured(tmp_path, costs)[0] for costs in networks] == [(curves, True) for curves, _ in found]


def test_other_collectives_are_kept_apart(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> list[bool]:
        return [quick(engine, keys, 0.0, tmp_path)[1] for keys in (KEYS, [("allreduce", "auto")])]

    assert run_ranks(RANKS, body) == [[False, False]] * RANKS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["allgather-auto+alltoall-auto", "allreduce-auto"]


def test_by_default_they_lie_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    run_ranks(RANKS, lambda engine: quick(engine, KEYS, 0.0))
    (file,) = tmp_path.rglob("*.json")
    assert file.parent == tmp_path / "quick" / "allgather-auto+alltoall-auto"


def test_lines_are_exact_where_latency_and_bandwidth_are_all_there_is() -> None:
    costs = Formulas(1e-4, 4e-7, RANKS)
    curves = {key: Curve((1024, 65_536), tuple(costs.seconds(*key, s) for s in (1024, 65_536))) for key in KEYS}
    for key in KEYS:
        for size in (1, 512, 1024, 9_999, 65_536, 1 << 24):
            assert Lines(Curves(RANKS, curves)).seconds(*key, size) == pytest.approx(costs.seconds(*key, size))


def test_lines_never_fall_below_zero_and_one_point_is_level() -> None:
    curves = Curves(RANKS, {KEYS[0]: Curve((1024, 2048), (1e-3, 3e-3)), KEYS[1]: Curve((1024,), (1e-3,))})
    assert Lines(curves).seconds(*KEYS[0], 64) == 0.0
    assert Lines(curves).seconds(*KEYS[1], 1 << 20) == 1e-3
