"""The timeline of whole steps, read as a viewer reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hvd_compress.compressors import TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.events.timeline import JsonArrayFile
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, on_engine

STEPS, EVERY, BUCKETS = 45, 10, 3

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


def train(engine: InProcessEngine, file: Path, request: Request) -> None:
    settings = Settings(600, 60, adapt=True, calibration_s=0.0, timeline=file, timeline_every=EVERY)
    parameters, optimizer = on_engine(engine, request, settings=settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()
    optimizer._reducer.close()


def paired(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[str, int, int, dict[str, Any]]]]:
    """Return (name, start, end, args) by row, as a viewer makes them of B and E: the last begun ends first."""
    rows, open_ = defaultdict(list), defaultdict(list)
    for event in events:
        row = event.get("pid"), event.get("tid")
        if event["ph"] == "B":
            open_[row].append(event)
        elif event["ph"] == "E":
            begun = open_[row].pop()
            rows[row].append((begun["name"], begun["ts"], event["ts"], begun["args"]))
            assert begun["ts"] <= event["ts"]
    assert not any(open_.values())
    return rows


@pytest.mark.parametrize("request_", [Request(TopK(0.05)), Request(TopK(0.05), "star", "ring")], ids=("open", "fixed"))
def test_every_bucket_has_a_row_for_each_phase(request_: Request, tmp_path: Path) -> None:
    file = tmp_path / "traces" / "rank{rank}.json"
    run_ranks(2, lambda engine: train(engine, file, request_))
    assert sorted(path.name for path in file.parent.iterdir()) == ["rank0.json", "rank1.json"]
    for rank in range(2):
        events = json.loads((file.parent / f"rank{rank}.json").read_text())
        names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
        assert names[0] == f"training, rank {rank}"
        assert "(second.bias)" in names[1]
        assert len(names) == 1 + BUCKETS
        rows = paired(events)
        assert [name for name, *_ in rows[0, 0]] == ["FORWARD", "BACKWARD", "WAIT"] * 5
        assert [args["step"] for *_, args in rows[0, 0][::3]] == [0, 10, 20, 30, 40]
        for pid in range(1, 1 + BUCKETS):
            phases = [[span for span in rows[pid, tid] if "step" in span[3]] for tid in (1, 2, 3)]
            for encode, communicate, decode in zip(*phases, strict=True):
                assert [encode[0], communicate[0], decode[0]] == ["ENCODE", "COMMUNICATE", "DECODE"]
                assert encode[1] <= encode[2] <= communicate[1] <= communicate[2] <= decode[1] <= decode[2]
                assert communicate[3]["sent_bytes"] > 0
                assert communicate[3]["ratio"] in (0.05, 1.0)
            calls = [span for span in rows[pid, 2] if "step" not in span[3]]
            assert {name for name, *_ in calls} <= {
                f"IN-PROCESS_{verb}" for verb in ("ALLREDUCE", "ALLGATHER", "BROADCAST")
            }
            assert len(calls) >= 5
        instants = [event for event in events if event["ph"] == "i"]
        assert bool(instants) == (request_.collective == "auto")
        assert all(event["args"]["reason"] for event in instants)
        if instants:
            assert {event["args"]["kind"] for event in instants} == {"choice"}


def test_without_a_place_for_the_rank_only_the_first_writes(tmp_path: Path) -> None:
    run_ranks(2, lambda engine: train(engine, tmp_path / "trace.json", Request(TopK(0.05), "star", "ring")))
    events = json.loads((tmp_path / "trace.json").read_text())
    assert events[0]["args"]["name"] == "training, rank 0"
    assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1.7e15


def refused(told: str, ranks: int, request: Request, **where: Path) -> None:
    """Train with settings of which one cannot be written: every rank says so."""

    def body(engine: InProcessEngine) -> None:
        settings = Settings(600, 60, adapt=True, calibration_s=0.0, **where)
        parameters, optimizer = on_engine(engine, request, settings=settings)
        backward(parameters, engine.rank, 0)
        with pytest.raises(
            ConfigError, match=told + r" \(a part of the path is no folder\): name what it can write, or unset it"
        ):
            optimizer.step()
        optimizer._reducer.close()

    run_ranks(ranks, body)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_one_rank_cannot_write_is_an_error_of_all_of_them(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "trace.json"
    fixed = Request(TopK(0.05), "star", "ring")
    refused(f"rank 0 cannot write HVD_COMPRESS_TIMELINE = {path}", ranks, fixed, timeline=path)


@pytest.mark.parametrize("request_", [Request(TopK(0.05)), Request(TopK(0.05), "star", "ring")])
@pytest.mark.parametrize("name", ["log", "tensorboard"])
def test_events_that_cannot_be_written_are_an_error_of_all_ranks(name: str, request_: Request, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "what it writes"
    refused(f"rank 0 cannot write HVD_COMPRESS_{name.upper()} = {path}", 2, request_, **{name: path})


def test_a_rank_that_writes_no_events_is_asked_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(log=tmp_path / "file" / "log", tensorboard=tmp_path / "file" / "board")
    assert settings.obstacle(1) == ""


def test_to_ask_leaves_no_file_behind(tmp_path: Path) -> None:
    settings = Settings(log=tmp_path / "new" / "log", timeline=tmp_path / "trace.json", tensorboard=tmp_path / "board")
    assert settings.obstacle(0) == ""
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_up_ends_the_timeline_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = JsonArrayFile.add, []

    def full(file: JsonArrayFile, records: list[dict[str, Any]]) -> None:
        if added:
            raise OSError(28, "No space left on device")
        added.extend(records)
        add(file, records)

    monkeypatch.setattr(JsonArrayFile, "add", full)
    with pytest.warns(RuntimeWarning, match=r"timeline .* ends here: .*No space left"):
        run_ranks(1, lambda engine: train(engine, tmp_path / "trace.json", Request(TopK(0.05), "star", "ring")))
    assert json.loads((tmp_path / "trace.json").read_text()) == added


def test_a_disk_that_is_full_ends_no_training_on_one_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake has asked whether the file can be opened; that it has no room is seen later, by its rank."""

    def full(file: JsonArrayFile, path: Path) -> None:
        if "rank 1" in str(path):
            raise OSError(28, "No space left on device")
        begin(file, path)

    begin = JsonArrayFile.__init__
    monkeypatch.setattr(JsonArrayFile, "__init__", full)
    with pytest.warns(RuntimeWarning, match=r"timeline .*rank 1.* is not written: .*No space left"):
        run_ranks(2, lambda engine: train(engine, tmp_path / "rank {rank}", Request(TopK(0.05), "star", "ring")))
    assert json.loads((tmp_path / "rank 0").read_text())
