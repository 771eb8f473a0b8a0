"""Files that say how a network changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.netlab import Link, Schedule

HEAD = "at_s, latency, bandwidth\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "schedule.csv"
    file.write_text(text)
    return file


def test_each_line_holds_until_the_next(tmp_path: Path) -> None:
    text = "# a comment\n" + HEAD + "0, 1ms, 1gbit\n\n 1.5 ,2ms, 10mbit # slow\n"
    schedule = Schedule.read(written(tmp_path, text))
    fast, slow = Link.parse("1ms", "1gbit"), Link.parse("2ms", "10mbit")
    assert [schedule.at(when) for when in (0, 1.4, 1.5, 99)] == [fast, fast, slow, slow]
    assert schedule.in_seconds(None) == schedule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "says nothing"),
        (HEAD, "says nothing"),
        ("0, 1ms, 1gbit\n", "line 1: the first line"),
        (HEAD + "1, 1ms, 1gbit\n", "line 2: a schedule begins at 0"),
        (HEAD + "0, 1ms, 1gbit\n5, 1ms, 1gbit\n4, 1ms, 1gbit\n", "line 4: 4 comes after 5"),
        (HEAD + "0, 1ms, 1gbit\n0, 1ms, 1gbit\n", "line 3: 0 comes after 0"),
        (HEAD + "0, 1ms\n", "line 2: there must be three fields"),
        (HEAD + "0s, 1ms, 1gbit\n", "line 2: '0s' is no time"),
        (HEAD + "nan, 1ms, 1gbit\n", "line 2: the time nan is out of range"),
        (HEAD + "1e10, 1ms, 1gbit\n", "line 2: the time 1e10 is out of range"),  # no thread can wait for so long
        (HEAD + "0, 1, 1gbit\n", "line 2: latency '1' has no unit"),
        (HEAD + "0, 1ms, -1gbit\n", "line 2: bandwidth '-1gbit' must be a finite number"),
    ],
)
def test_what_is_no_schedule(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        Schedule.read(written(tmp_path, text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the schedule nowhere: .* c1, c1-lab, c2, c2-lab"):
        Schedule.read("nowhere")


def test_epochs_become_seconds() -> None:
    schedule = Schedule.read("c1")
    assert [change.at for change in schedule.in_seconds(2.5).changes] == [0, 30, 60, 90]
    for epoch_s in (None, 0, -1, 1e300, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="epoch"):
            schedule.in_seconds(epoch_s)


def test_the_configurations_of_the_paper() -> None:
    low, high = Link.parse("1ms", "25gbit"), Link.parse("50ms", "1gbit")
    c1, c2 = Schedule.read("c1"), Schedule.read("c2")
    assert [c1.at(epoch) for epoch in (0, 11, 24, 35)] == [low, low, high, high]
    assert [c1.at(epoch) for epoch in (12, 36)] == [Link.parse("1ms", "1gbit"), Link.parse("50ms", "25gbit")]
    assert [c2.at(epoch) for epoch in (11, 20, 27, 36)] == [low, high, high, low]
    assert c2.at(12) == c2.at(19) == c2.at(28) == c2.at(35)


@pytest.mark.parametrize("name", ["c1", "c2"])
def test_those_for_the_lab_differ_in_bandwidth_alone(name: str) -> None:
    for full, scaled in zip(Schedule.read(name).changes, Schedule.read(f"{name}-lab").changes, strict=True):
        assert (full.at, full.link.latency_s) == (scaled.at, scaled.link.latency_s)
        assert full.link.bytes_per_s == pytest.approx(25 * scaled.link.bytes_per_s)
