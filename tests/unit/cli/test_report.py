"""The controller's log as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from hvd_compress.cli.main import main
from hvd_compress.events import plot
from hvd_compress.events.history import Event, History

EVENTS = (
    Event(1, "begin", 0, ratio=0.01, reason="training begins"),
    Event(9, "choice", 0, "star-ring", 0.01, 0.004, 0.003, reason="4.00 ms measured, next dense with 9.00"),
    Event(13, "window", 0, "star-ring", 0.01, 0.0041, 0.003),
    Event(17, "window", 0, "star-ring", 0.01, 0.05, 0.003),
    Event(17, "worker", 0, "var-ring", 0.01, 0.0041, gain=0.3, reason="VAR sends 0.300"),
    Event(17, "network", latency=10.0, transfer=2.0, reason="bucket 0 by star-ring took 50.00 ms instead of 4.00"),
    Event(17, "noise", latency=10.0, transfer=2.0, reason="a rank took longer, but the network is what it was"),
    Event(17, "begin", 0, ratio=0.01, reason="bucket 0 by star-ring took 50.00 ms instead of 4.00"),
    Event(30, "choice", 0, "allgather", 0.01, 0.02, 0.03, reason="20.00 ms measured"),
)


def written(folder: Path, events: tuple[Event, ...] = EVENTS) -> Path:
    history = History(folder / "logs" / "choices.jsonl")
    for event in events:
        history.add(event)
    assert list(history) == list(events)
    return folder / "logs" / "choices.jsonl"


def run(*arguments: object):
    """In a window in which no line is broken."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["report", *map(str, arguments)])


def test_it_draws_and_says_what_was_chosen(tmp_path: Path) -> None:
    result = run(written(tmp_path))
    assert result.exit_code == 0, result.output
    picture = (tmp_path / "logs" / "choices.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert "star-ring" in result.output
    assert "latency x 10," in result.output
    assert "VAR sends" in result.output
    assert "noise: latency" in result.output


def test_both_times_are_named_and_a_ratio_is_the_one_that_is_sent(tmp_path: Path) -> None:
    whole = Event(31, "choice", 0, "dense-ring", 1.0, 0.025, 0.015, reason="no compression pays here")
    lines = run(written(tmp_path, (*EVENTS, whole))).output.splitlines()
    headings = next(place for place, line in enumerate(lines) if line.split()[:3] == ["step", "bucket", "what"])
    assert lines[headings - 1].split() == ["measured", "predicted"]
    assert lines[headings].split() == ["step", "bucket", "what", "ms", "ms", "why"]
    (chosen,) = (line for line in lines if "dense-ring" in line)
    assert " ".join(chosen.split()) == "31 0 dense-ring, ratio 1 25.00 15.00 no compression pays here"
    (worker,) = (line for line in lines if "VAR sends" in line)
    assert " ".join(worker.split()) == "17 0 var-ring, ratio 0.01 4.10 VAR sends 0.300"  # which is not predicted


def test_ratios_are_drawn_and_told_where_they_were_chosen(tmp_path: Path) -> None:
    chosen = (
        Event(1, "ratio", 0, ratio=0.02, gain=0.4, reason="training begins: the knee"),
        Event(1, "rollout", 0, "allgather", 0.02, 0.004, gain=0.4, reason="training begins"),
        *EVENTS,
        Event(31, "window", 0, "allgather", 0.02, 0.02, 0.03, 0.35),
        Event(31, "ratio", 0, ratio=0.05, gain=0.5, reason="the gain moved from 0.400 to 0.350"),
    )
    result = run(written(tmp_path, chosen))
    assert result.exit_code == 0, result.output
    assert "ratio 0.05 chosen, gain 0.500 expected" in result.output
    height = int.from_bytes((tmp_path / "logs" / "choices.png").read_bytes()[20:24], "big")
    assert height > 1000, "three panels have 880 pixels, and there should be a fourth"


def test_the_ratio_that_is_drawn_is_the_one_that_is_sent() -> None:
    """Where nothing is compressed, that is not the one that was chosen."""
    chosen = [Event(1, "ratio", 0, ratio=0.02, gain=0.4), Event(20, "ratio", 0, ratio=0.05, gain=0.5)]
    used = [Event(9, "choice", 0, "star", 0.02, 0.004), Event(25, "choice", 0, "dense", 1.0, 0.004)]
    panel = Figure().subplots()
    plot._draw_ratios(panel, chosen, used)
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()}
    assert lines["bucket 0, ratio"] == ([9, 25], [0.02, 1.0])
    assert lines["bucket 0, gain"] == ([1, 20, 25], [0.4, 0.5, 0.5])


def test_a_log_survives_being_written_and_read(tmp_path: Path) -> None:
    from hvd_compress.events.history import read

    assert [event.to_json() for event in read(written(tmp_path))] == [event.to_json() for event in EVENTS]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no choice yet"),
        ('{"step": 1, "kind": "begin"}\n{"step": 2', "line 2: not an event"),
        ('{"step": 1, "kind": "feast"}', "line 1: not an event"),
        ('{"step": 1, "kind": "begin", "colour": 3}', "line 1: not an event"),
        ('{"step": 1, "kind": "choice", "measured_s": "x"}', "measured_s is 'x'"),
        ('{"step": 1, "kind": "choice", "measured_s": null}', "measured_s is None"),
        ('{"step": 1, "kind": "choice", "bucket": 1.5}', "bucket is 1.5"),
        ("[1]", "line 1: not an event"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(text)
    result = run(log)
    assert result.exit_code == 2
    assert words in result.output


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    result = run(tmp_path / "nothing.jsonl")
    assert result.exit_code == 2
    assert "cannot read" in result.output


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\xff")
    result = run(picture)
    assert result.exit_code == 2
    assert "a log is the file that HVD_COMPRESS_LOG named" in result.output


def test_the_picture_has_the_name_that_is_told(tmp_path: Path) -> None:
    assert "wrote " in run(written(tmp_path), "--out", tmp_path / "picture").output
    assert (tmp_path / "picture.png").exists()
    result = run(written(tmp_path), "--out", tmp_path / "picture.foo")
    assert result.exit_code == 2
    assert "Format 'foo' is not supported" in result.output


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    result = run(written(tmp_path), "--out", tmp_path / "nowhere" / "picture.png")
    assert result.exit_code == 2
    assert "cannot write" in result.output
