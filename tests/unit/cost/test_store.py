"""Saved curves: used by jobs of the same shape alone, the same in two jobs on one network, and never half written."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import warnings
from pathlib import Path

import pytest

from hvd_compress.cost import store
from hvd_compress.cost.calibrate import SIZES
from hvd_compress.cost.curves import Curve, Curves, Key
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.store import ALIKE, JobShape, default_folder, job_shape, load, obtain, save
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.unit.cli.test_hostile_files import TEXTS, absurd
from tests.unit.cost.played import follow

KEYS = [("alltoall", "auto"), ("allgather", "auto")]
RANKS = 3


def shape(n: int = 2) -> JobShape:
    return run_ranks(n, job_shape)[0]


def some_curves(n: int = 2, alpha: float = 1e-3) -> Curves:
    costs, sizes = Formulas(alpha, 1e-8, n), (1024, 65_536)
    return Curves(n, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in KEYS})


def loaded(folder: Path, wanted: JobShape, keys: list[Key] = KEYS) -> list[list[Curves]]:
    return run_ranks(wanted.world_size, lambda engine: load(engine, wanted, keys, folder))


def test_what_was_saved_is_loaded_on_every_rank(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    assert loaded(tmp_path, wanted) == [[some_curves()]] * 2
    assert [path.name for path in tmp_path.iterdir()] == [wanted.file_name()], "nothing is left beside it"


def test_nothing_saved_is_no_word(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(tmp_path / "missing", shape()) == [[], []]


def changed(path: Path, **fields: object) -> None:
    content = json.loads(path.read_text())
    content["shape"].update(fields)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": "0.0"}, "another job shape .version '0.0' instead of"),
        ({"hosts": ["a", "b"]}, "another job shape .hosts"),
        ({"world_size": 3}, "another job shape .world_size 3 instead of 2"),
        ({"engine": "MPI", "library": "Open MPI"}, "engine 'MPI' instead of 'in-process', library"),
    ],
)
def test_another_job_shape_is_ignored_with_a_word(tmp_path, fields, says):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    changed(tmp_path / wanted.file_name(), **fields)
    with pytest.warns(UserWarning, match=says):
        assert loaded(tmp_path, wanted) == [[], []]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"shape": 3}', '{"shape": {}, "curves": 5}', "\x00"])
def test_a_broken_file_is_ignored_with_a_word(tmp_path, text):
    wanted = shape()
    (tmp_path / wanted.file_name()).write_text(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert loaded(tmp_path, wanted) == [[], []]


@pytest.mark.parametrize(("key", "value"), [("bytes", math.inf), ("seconds", 10**400)])
def test_numbers_that_are_none_are_ignored_with_a_word(tmp_path, key, value):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    content = json.loads(path.read_text())
    content["states"][0]["curves"][0][key][0] = value
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="is ignored: it cannot be read"):
        assert loaded(tmp_path, wanted) == [[], []]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_of_anything_is_ignored_with_a_word(tmp_path, text):
    wanted = shape(1)
    (tmp_path / wanted.file_name()).write_bytes(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert loaded(tmp_path, wanted) == [[]]


def test_one_absurd_value_is_read_or_ignored_with_a_word(tmp_path):
    wanted = shape(1)
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    for text in list(absurd(path)):
        path.write_text(text)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded(tmp_path, wanted)
        assert all("is ignored" in str(each.message) for each in told)


def test_a_disk_that_is_full_is_a_warning_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.json, "dump", full)
    with pytest.warns(UserWarning, match="were not saved: .*No space left"):
        save(some_curves(), shape(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_without_one_of_the_collectives_is_left_out_without_a_word(tmp_path):
    """It is of another request; one with more serves, too, by what is asked for."""
    wanted, whole = shape(), some_curves()
    only = [{key: whole.by_key[key]} for key in KEYS]
    for by_key in only:
        save(Curves(2, by_key), wanted, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(tmp_path, wanted) == [[], []]
        save(whole, wanted, tmp_path)
        assert loaded(tmp_path, wanted) == [[whole]] * 2
        for key, by_key in zip(KEYS, only, strict=True):
            assert loaded(tmp_path, wanted, [key]) == [[Curves(2, by_key)] * 2] * 2


def test_the_oldest_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "KEPT", 3)
    for age in range(5):
        (tmp_path / f"other{age}.json").write_text("{}")
        os.utime(tmp_path / f"other{age}.json", (1e9 - age, 1e9 - age))
    save(some_curves(), shape(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {shape().file_name(), "other0.json", "other1.json"}


def test_old_files_that_cannot_be_looked_at_are_a_warning(tmp_path):
    (tmp_path / "other.json").symlink_to("other.json")  # to itself
    with pytest.warns(UserWarning, match="old calibrated curves were not removed"):
        save(some_curves(), shape(), tmp_path)
    assert loaded(tmp_path, shape()) == [[some_curves()]] * 2


def test_a_folder_that_cannot_be_read_is_ignored_with_a_word(tmp_path):
    """As where the cache lies below another user's home, which root may read."""
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="is ignored: it cannot be read .NotADirectoryError"):
        assert loaded(tmp_path / "file", shape()) == [[], []]


def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not saved"):
        save(some_curves(), shape(), tmp_path / "file")


def test_the_file_is_replaced_whole(tmp_path, monkeypatch):
    """A job that dies while it writes leaves the old file."""
    wanted = shape()
    save(some_curves(), wanted, tmp_path)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with contextlib.suppress(KeyboardInterrupt):
            save(some_curves(alpha=9.0), wanted, tmp_path)
    assert loaded(tmp_path, wanted) == [[some_curves()]] * 2


def measured(folder: Path, costs: Formulas, budget_s: float = 0.5) -> list[tuple[Curves, bool]]:
    """What each rank of a job finds on a network of which formulas hold."""

    def body(engine: InProcessEngine) -> tuple[Curves, bool]:
        follow(engine, costs)
        return obtain(engine, KEYS, budget_s, folder)

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


def test_the_budget_is_short_however_much_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []

    class Noting(store.Calibrator):
        def __init__(self, engine, keys, budget_s, sizes):  # type: ignore[no-untyped-def]
            budgets.append((len(keys), budget_s))
            super().__init__(engine, keys, 0.0, sizes)

    monkeypatch.setattr(store, "Calibrator", Noting)
    many = [("allreduce", name) for name in ("auto", "ring", "tree", "recursive_doubling", "rabenseifner")] + KEYS
    for keys, budget_s in ((KEYS, 3.0), (many, 3.0), (many, 0.2)):
        run_ranks(1, lambda engine, keys=keys, budget_s=budget_s: obtain(engine, keys, budget_s, tmp_path))
    assert budgets == [(2, 0.5), (7, pytest.approx(0.7)), (7, 0.2)]


def test_no_measurement_moves_more_than_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", RANKS * SIZES[1])
    curves, _ = measured(tmp_path, Formulas(1e-6, 1e-12, RANKS))[0]
    for curve in curves.by_key.values():
        assert {*SIZES[:2]} <= {*curve.sizes} <= {size for size in SIZES if size <= SIZES[1]}


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


def test_other_collectives_are_measured_for_themselves(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> list[bool]:
        follow(engine, Formulas(1e-3, 1e-8, RANKS))
        asked: list[list[Key]] = [KEYS, [("allreduce", "auto")], KEYS, KEYS[1:]]
        return [obtain(engine, keys, 0.0, tmp_path)[1] for keys in asked]

    assert run_ranks(RANKS, body) == [[False, False, True, True]] * RANKS


def test_by_default_they_lie_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    run_ranks(RANKS, lambda engine: obtain(engine, KEYS, 0.0))
    (file,) = tmp_path.rglob("*.json")
    assert file.parent == tmp_path / "curves"


def test_the_newest_states_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "STATES", 4)
    for alpha in range(1, 7):
        save(some_curves(alpha=float(alpha)), shape(), tmp_path)
    assert loaded(tmp_path, shape()) == [[some_curves(alpha=float(alpha)) for alpha in range(3, 7)]] * 2


def test_a_file_of_a_whole_calibration_as_it_was_written_before_is_read(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    content = json.loads(path.read_text())
    content["states"][0]["budget_s"] = 3.0
    path.write_text(json.dumps(content))
    assert loaded(tmp_path, wanted) == [[some_curves()]] * 2


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "curves"
    monkeypatch.delenv("HVD_COMPRESS_CACHE")
    assert default_folder() == Path.home() / ".cache" / "hvd_compress" / "curves"
