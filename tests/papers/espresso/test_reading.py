"""A timeline that was written is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines.base import Call
from hvd_compress.errors import ConfigError
from hvd_compress.events.timeline import Timeline, TraceRecord
from hvd_compress.papers.espresso.timeline.reading import read


def spans(start: float) -> PhaseSpans:
    call = Call("allgather", "auto", 10, 0.002, 40, start + 0.0025)
    return PhaseSpans((start, start + 0.001), (start + 0.002, start + 0.005), (start + 0.006, start + 0.007), (call,))


def written(path: Path, steps: int) -> Path:
    timeline = Timeline(path, 0, "MPI", 100.0)
    for number in range(steps):
        start = 100.0 + number
        training = [
            ("FORWARD", (start, start + 0.1)),
            ("BACKWARD", (start + 0.1, start + 0.2)),
            ("WAIT", (start + 0.2, start + 0.5)),
        ]
        names = ("one (1)", "two and 3 more")
        timeline.step(
            number, training, [TraceRecord(name, {}, spans(start + 0.01 * n)) for n, name in enumerate(names)]
        )
    timeline.close()
    return path


def test_written_is_read(tmp_path: Path) -> None:
    first, second = read(written(tmp_path / "t.json", 2))
    assert (first.number, second.number) == (0, 1)
    assert second.us == pytest.approx(500_000, abs=2)
    backward = second.training("BACKWARD")
    assert (backward.bucket, backward.phase, backward.call) == ("", "BACKWARD", "")
    assert (backward.start_us, backward.end_us) == pytest.approx((1_100_000, 1_200_000), abs=2)
    own = sorted((s for s in second.spans if s.bucket == "two and 3 more"), key=lambda span: (span.phase, span.call))
    assert [(s.phase, s.call) for s in own] == [
        ("COMMUNICATE", ""),
        ("COMMUNICATE", "MPI_ALLGATHER"),
        ("DECODE", ""),
        ("ENCODE", ""),
    ]
    assert [round(s.end_us - s.start_us, -1) for s in own] == [3000, 2000, 1000, 1000]
    assert {s.bucket for s in first.spans} == {"", "one (1)", "two and 3 more"}
    records = json.loads((tmp_path / "t.json").read_text())
    assert [r["args"]["sent_bytes"] for r in records if r.get("name") == "COMMUNICATE"] == 4 * [10]
    with pytest.raises(ConfigError, match="step 0 of the timeline has no SLEEP"):
        first.training("SLEEP")


def test_buckets_that_are_made_anew_have_their_own_names(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "t.json", 0, "TORCH", 100.0)
    made = [("all (3)",), ("one", "two"), ("two", "one"), ("one", "two")]
    for number, names in enumerate(made):
        start = 101.0 + number
        training = [("FORWARD", (start, start)), ("BACKWARD", (start, start)), ("WAIT", (start, start + 0.5))]
        timeline.step(number, training, [TraceRecord(name, {}, spans(start)) for name in names])
    timeline.close()
    found = [[span.bucket for span in step.spans if span.phase == "ENCODE"] for step in read(tmp_path / "t.json")]
    assert found == [list(names) for names in made]
    processes = [
        r["args"]["name"] for r in json.loads((tmp_path / "t.json").read_text()) if r.get("name") == "process_name"
    ]
    assert processes[1:] == [
        *("bucket 0 (all (3))", "bucket 0 (one)", "bucket 1 (two)", "bucket 0 (two)", "bucket 1 (one)")
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "is no timeline: not JSON"),
        ("[]", "holds no step: one in HVD_COMPRESS_TIMELINE_EVERY"),
        ('{"traceEvents": []}', "another Chrome trace, such as that of `hvd-compress plan make --trace`"),
        ('{"version": 1}', "it is a JSON object, and not a list of records. HVD_COMPRESS_TIMELINE writes one"),
        ("7", "it is JSON, and not a list of records"),
        ("[7]", "record 0 is no object"),
        ('[{"name": "x", "ph": "i", "pid": 0}, {"pid": 1, "name": "x"}]', "record 1 has no 'ph'"),
        ('[{"name": "x", "ph": "X", "pid": 0, "tid": 0}, {"name": "y", "ph": "B"}]', "record 1 has no 'pid'"),
        (json.dumps([{"ph": "B", "name": "x", "pid": 1, "tid": 9, "ts": 0}]), "holds no step"),
        (json.dumps([{"ph": "E", "pid": 1, "tid": 1, "ts": 0}]), "its records are those of another program"),
    ],
)
def test_what_is_no_timeline(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read(path)
    assert "Error" not in str(caught.value), "Python's words"
    with pytest.raises(ConfigError, match="cannot read the timeline"):
        read(tmp_path / "none.json")


def test_a_picture_is_no_timeline(tmp_path: Path) -> None:
    path = tmp_path / "step.png"
    path.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ConfigError, match="is no timeline: not text"):
        read(path)


def test_deeply_nested_json_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="is no timeline: not JSON"):
        read(path)


@pytest.mark.parametrize("field", ["ts", "pid", "tid", "name", "args.step"])
@pytest.mark.parametrize("value", [10**400, 1e308, float("nan"), float("inf"), -1, True, None, "many", [], {}])
def test_absurd_fields_are_named(field: str, value: object, tmp_path: Path) -> None:
    """In the second record that has such a field, by its place."""
    path = written(tmp_path / "t.json", 2)
    records = json.loads(path.read_text())
    name, _, inner = field.partition(".")
    at = [n for n, one in enumerate(records) if one["ph"] == "B" and (not inner or inner in one["args"])][1]
    if field != "name" or not isinstance(value, str):
        (records[at]["args"] if inner else records[at])[inner or name] = value
        path.write_text(json.dumps(records))
        with pytest.raises(ConfigError, match=rf"is no timeline: {at}\.{field}: "):
            read(path)


def test_time_does_not_go_back(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", 1)
    records = json.loads(path.read_text())
    at = next(number for number, one in enumerate(records) if one["ph"] == "E")
    records[at - 1]["ts"] = records[at]["ts"] + 1
    path.write_text(json.dumps(records))
    with pytest.raises(ConfigError, match=rf"is no timeline: {at}\.ts: \d+ is before its beginning"):
        read(path)
