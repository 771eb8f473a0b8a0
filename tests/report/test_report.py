"""A log as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from hvd_compress.cli.main import main
from hvd_compress.events.history import Event
from hvd_compress.events.log import Log
from hvd_compress.report import plot
from hvd_compress.report.reading import read

EVENTS = (
    Event(9, "choice", 0, "star-ring", 0.01, predicted_s=0.003, reason="the knee: gain 0.3"),
    Event(13, "window", 0, "star-ring", 0.01, 0.0041),
    Event(17, "window", 0, "star-ring", 0.01, 0.05),
    Event(17, "root", 0, "var-ring", 0.01, gain=0.3, reason="VAR sends 0.300"),
    Event(21, "window", 0, "var-ring", 0.01, 0.0041),
    Event(21, "network", reason="exchanges take another time than those before"),
    Event(30, "choice", 0, "allgather", 0.01, predicted_s=0.03, reason="the knee"),
)


def written(folder: Path, events: tuple[Event, ...] = EVENTS) -> Path:
    log = Log(folder / "logs" / "choices.jsonl")
    for event in events:
        log(event)
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
    assert "VAR sends" in result.output
    assert "the network is measured again" in result.output


def test_both_times_are_named_and_a_ratio_is_the_one_that_is_sent(tmp_path: Path) -> None:
    whole = Event(31, "choice", 0, "dense-ring", 1.0, predicted_s=0.015, reason="no compression pays here")
    window = Event(39, "window", 0, "dense-ring", 1.0, 0.025)
    lines = run(written(tmp_path, (*EVENTS, whole, window))).output.splitlines()
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
    assert height > 1000, "two panels have 700 pixels, and there should be a third"


def test_the_ratio_that_is_drawn_is_the_one_that_is_sent() -> None:
    """Where nothing is compressed, that is not the one that was chosen."""
    chosen = [Event(1, "ratio", 0, ratio=0.02, gain=0.4), Event(20, "ratio", 0, ratio=0.05, gain=0.5)]
    used = [Event(9, "choice", 0, "star", 0.02, 0.004), Event(25, "choice", 0, "dense", 1.0, 0.004)]
    panel = Figure().subplots()
    plot._draw_ratios(panel, chosen, used)
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()}
    assert lines["bucket 0, ratio"] == ([9, 25], [0.02, 1.0])
    assert lines["bucket 0, gain"] == ([1, 20, 25], [0.4, 0.5, 0.5])


FIXED = (
    Event(0, "choice", 0, "alltoall-allgather", 1.0, compressor="BlockQuantizer(bits=4)", reason="fewest bytes"),
    Event(0, "choice", 1, "dense", 1.0, compressor="Cast()", reason="asked for"),
    Event(0, "choice", 1, "skip", 1.0, compressor="Cast()", reason="sent in one of 2 steps"),
    Event(3, "window", 0, "alltoall-allgather", 1.0, 0.004, wire_ratio=0.13),
    Event(3, "window", 1, "dense", 1.0, 0.040, wire_ratio=0.5),
    Event(11, "window", 0, "alltoall-allgather", 1.0, 0.005, wire_ratio=0.13),
    Event(11, "window", 1, "dense", 1.0, 0.042, wire_ratio=0.5),
    Event(12, "choice", 0, "allgather", 1.0, compressor="BlockQuantizer(bits=4)", reason="fewest bytes"),
    Event(13, "choice", 0, "alltoall-allgather", 1.0, compressor="BlockQuantizer(bits=8)", reason="changed"),
    Event(27, "window", 0, "alltoall-allgather", 1.0, 0.020, wire_ratio=0.25),
)


def test_what_was_fixed_is_told_with_what_it_took(tmp_path: Path) -> None:
    """Seconds and bytes are those of the windows after a choice, up to the next one that travels so."""
    lines = [" ".join(line.split()) for line in run(written(tmp_path, FIXED)).output.splitlines()]
    assert "0 0 alltoall-allgather, BlockQuantizer(bits=4) 4.50 0.130 fewest bytes" in lines
    assert "0 1 dense, Cast() 41.00 0.500 asked for" in lines
    assert "0 1 skip, Cast() sent in one of 2 steps" in lines
    assert "12 0 allgather, BlockQuantizer(bits=4) fewest bytes" in lines
    assert "13 0 alltoall-allgather, BlockQuantizer(bits=8) 20.00 0.250 changed" in lines
    assert "sent over" not in run(written(tmp_path)).output, "bytes were not counted"


def drawn(events: Sequence[Event]) -> dict[str, Any]:
    """The titles of a picture's panels, and the labels of their lines."""
    figure = Figure()
    plot.draw_on(figure, events)
    return {panel.get_title() or panel.get_ylabel(): panel.get_legend_handles_labels()[1] for panel in figure.axes}


def test_a_picture_has_bytes_where_they_were_counted() -> None:
    fixed, chosen = drawn(FIXED), drawn(EVENTS)
    assert fixed["ms an exchange"] == ["bucket 0, measured", "bucket 1, measured"]
    assert fixed["bytes / dense"] == ["bucket 0", "bucket 1"]
    assert chosen["ms an exchange"] == ["bucket 0, measured", "bucket 0, predicted"]
    assert "bytes / dense" not in chosen


def test_a_picture_before_the_first_window() -> None:
    assert drawn(FIXED[:3])["ms an exchange"] == []


def test_a_log_survives_being_written_and_read(tmp_path: Path) -> None:
    assert [event.to_json() for event in read(written(tmp_path))] == [event.to_json() for event in EVENTS]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no choice yet"),
        ('{"step": 1, "kind": "choice"}\n{"step": 2', "line 2: not an event"),
        ('{"step": 1, "kind": "feast"}', "line 1: not an event"),
        ('{"step": 1, "kind": "choice", "colour": 3}', "line 1: not an event"),
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


def test_without_matplotlib_it_ends_with_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib.backends.backend_agg", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    result = run(written(tmp_path))
    assert result.exit_code == 2
    words = "Error: matplotlib is missing, which hvd-compress report needs: pip install 'hvd_compress[plot]'"
    assert result.output.strip() == words
