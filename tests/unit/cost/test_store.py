"""Saved curves: used by jobs of the same shape alone, and never half written."""

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
from hvd_compress.cost.calibrate import measurable
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.store import JobShape, default_folder, job_shape, load, obtain, save
from hvd_compress.engines.inprocess import InProcessWorld, run_ranks
from tests.unit.cli.test_hostile_files import TEXTS, absurd


def shape(n: int = 2) -> JobShape:
    return run_ranks(n, job_shape)[0]


def some_curves(n: int = 2, alpha: float = 1e-3) -> Curves:
    costs, sizes = Formulas(alpha, 1e-8, n), (1024, 65_536)
    keys = measurable(InProcessWorld(n).engine(0))
    return Curves(n, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in keys})


def loaded(folder: Path, wanted: JobShape) -> list[tuple[Curves, ...]]:
    return run_ranks(wanted.world_size, lambda engine: load(engine, wanted, folder))


def test_what_was_saved_is_loaded_on_every_rank(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    assert loaded(tmp_path, wanted) == [(some_curves(),)] * 2
    assert [path.name for path in tmp_path.iterdir()] == [wanted.file_name()], "nothing is left beside it"


def test_nothing_saved_is_no_word(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(tmp_path / "missing", shape()) == [(), ()]


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
        assert loaded(tmp_path, wanted) == [(), ()]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"shape": 3}', '{"shape": {}, "curves": 5}', "\x00"])
def test_a_broken_file_is_ignored_with_a_word(tmp_path, text):
    wanted = shape()
    (tmp_path / wanted.file_name()).write_text(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert loaded(tmp_path, wanted) == [(), ()]


def test_a_budget_that_is_no_number_is_ignored_with_a_word(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    content = json.loads(path.read_text())
    content["states"][0]["budget_s"] = 10**400
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="is ignored: it cannot be read"):
        assert loaded(tmp_path, wanted) == [(), ()]


@pytest.mark.parametrize(("key", "value"), [("bytes", math.inf), ("seconds", 10**400)])
def test_numbers_that_are_none_are_ignored_with_a_word(tmp_path, key, value):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    content = json.loads(path.read_text())
    content["states"][0]["curves"][0][key][0] = value
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="is ignored: it cannot be read"):
        assert loaded(tmp_path, wanted) == [(), ()]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_of_anything_is_ignored_with_a_word(tmp_path, text):
    wanted = shape(1)
    (tmp_path / wanted.file_name()).write_bytes(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert loaded(tmp_path, wanted) == [()]


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


def test_curves_of_fewer_algorithms_are_ignored_with_a_word(tmp_path):
    wanted, whole = shape(), some_curves()
    fewer = {key: curve for key, curve in whole.by_key.items() if key != ("broadcast", "pipeline_16k")}
    save(Curves(2, fewer), wanted, tmp_path)
    with pytest.warns(UserWarning, match="it lacks broadcast pipeline_16k"):
        assert loaded(tmp_path, wanted) == [(), ()]


def test_a_state_of_fewer_algorithms_is_left_out_alone(tmp_path):
    wanted, whole = shape(), some_curves()
    fewer = {key: curve for key, curve in whole.by_key.items() if key != ("broadcast", "pipeline_16k")}
    for curves in (Curves(2, fewer), whole):
        save(curves, wanted, tmp_path)
    assert loaded(tmp_path, wanted) == [(whole,)] * 2


def test_quick_measurements_do_not_push_out_thorough_ones(tmp_path):
    save(some_curves(alpha=1.0), shape(), tmp_path, budget_s=3.0)
    for alpha in range(2, 8):
        save(some_curves(alpha=float(alpha)), shape(), tmp_path, budget_s=0.0)
    found = run_ranks(2, lambda engine: load(engine, shape(), tmp_path, 0.0))[0]
    assert found == tuple(some_curves(alpha=alpha) for alpha in (1.0, 5.0, 6.0, 7.0))


def test_curves_that_were_measured_in_less_time_than_is_asked_for_are_measured_again(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path, budget_s=0.5)
    for budget_s, found in ((0.1, (some_curves(),)), (0.5, (some_curves(),)), (3.0, ())):
        asked = run_ranks(2, lambda engine, budget_s=budget_s: load(engine, wanted, tmp_path, budget_s))
        assert asked == [found] * 2


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
    assert loaded(tmp_path, shape()) == [(some_curves(),)] * 2


def test_a_folder_that_cannot_be_read_is_ignored_with_a_word(tmp_path):
    """As where the cache lies below another user's home, which root may read."""
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="is ignored: it cannot be read .NotADirectoryError"):
        assert loaded(tmp_path / "file", shape()) == [(), ()]


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
    assert loaded(tmp_path, wanted) == [(some_curves(),)] * 2


def test_each_state_of_a_network_is_measured_once_and_the_second_is_told(tmp_path, monkeypatch, caplog):
    """A machine that is idle and busy in turns does not measure in every job."""
    states = {"idle": some_curves(), "busy": some_curves(alpha=1.0), "busier": some_curves(alpha=9.0)}
    now = "idle"
    monkeypatch.setattr(store, "calibrate", lambda engine, budget_s: states[now])
    monkeypatch.setattr(store, "matching", lambda engine, saved: states[now] if states[now] in saved else None)
    measured, told = [], []
    for now in ("idle", "idle", "busy", "idle", "busy", "busier", "busy"):
        caplog.clear()
        results = run_ranks(2, lambda engine: obtain(engine, folder=tmp_path))
        assert [curves for curves, _ in results] == [states[now]] * 2
        measured.append(not results[0][1])
        told.append(len(caplog.records))
    assert measured == [True, False, True, False, False, True, False]
    assert told == [0, 0, 1, 0, 0, 0, 0]


def test_the_message_says_what_was_done_and_how_long_it_took(tmp_path, monkeypatch, caplog):
    now_s = 10.0
    monkeypatch.setattr(store, "perf_counter", lambda: now_s)
    this_shape = shape(1)

    def measure(engine, budget_s):
        nonlocal now_s
        now_s += 2.96
        return some_curves()

    monkeypatch.setattr(store, "calibrate", measure)
    monkeypatch.setattr(store, "load", lambda *_: (some_curves(alpha=5.0),))
    monkeypatch.setattr(store, "matching", lambda engine, saved: None)
    monkeypatch.setattr(store, "job_shape", lambda engine: this_shape)
    obtain(InProcessWorld(1).engine(0), folder=tmp_path)
    (record,) = caplog.records
    assert "it was measured again, in 3.0 s. Both" in record.getMessage()
    assert record.levelname == "WARNING"


def test_a_file_of_one_state_as_it_was_written_before_is_read(tmp_path):
    wanted = shape()
    save(some_curves(), wanted, tmp_path)
    path = tmp_path / wanted.file_name()
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"shape": content["shape"], **content["states"][0]}))
    assert loaded(tmp_path, wanted) == [(some_curves(),)] * 2


def test_the_newest_states_are_kept(tmp_path):
    for alpha in range(1, 7):
        save(some_curves(alpha=float(alpha)), shape(), tmp_path)
    newest = tuple(some_curves(alpha=float(alpha)) for alpha in range(3, 7))
    assert loaded(tmp_path, shape()) == [newest] * 2


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "curves"
    monkeypatch.delenv("HVD_COMPRESS_CACHE")
    assert default_folder() == Path.home() / ".cache" / "hvd_compress" / "curves"
