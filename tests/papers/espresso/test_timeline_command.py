"""`hvd-compress timeline`: a step that was traced, with buckets in flight together."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines.calls import Call
from hvd_compress.events.timeline import Timeline, TraceRecord
from hvd_compress.papers.espresso.timeline.reading import read
from hvd_compress.papers.espresso.timeline.traced import side_by_side, traced_boxes


def spans(begin: float, sends: float) -> PhaseSpans:
    """A bucket that is compressed for 1 ms, sent for some, and decompressed for 2."""
    encoded, sent = begin + 0.001, begin + 0.001 + sends
    call = Call("allgather", "auto", 100, sends, 200, encoded)
    return PhaseSpans((begin, encoded), (encoded, sent), (sent, sent + 0.002), (call,))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Steps 0 and 10: 10 ms forward, 20 backward, 15 of waiting; the second bucket leaves before the first is there."""
    path = tmp_path / "trace.json"
    timeline = Timeline(path, 0, "MPI", 0.0)
    for number, at in ((0, 0.0), (10, 1.0)):
        training = [
            ("FORWARD", (at, at + 0.010)),
            ("BACKWARD", (at + 0.010, at + 0.030)),
            ("WAIT", (at + 0.030, at + 0.045)),
        ]
        how = {"candidate": "allgather"}
        buckets = [("a", spans(at + 0.012, 0.010)), ("b", spans(at + 0.020, 0.010)), ("c", spans(at + 0.030, 0.012))]
        timeline.step(number, training, [TraceRecord(name, how, one) for name, one in buckets])
    timeline.close()
    return path


def run(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, ["timeline", *map(str, words)])


def test_a_step_as_a_table_and_a_picture(trace: Path) -> None:
    done = run(trace)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if re.match(" *[abc] ", line)]
    assert rows == [
        ["a", "allgather", "1.00", "10.00", "2.00", "25.00"],
        ["b", "allgather", "1.00", "10.00", "2.00", "33.00"],
        ["c", "allgather", "1.00", "12.00", "2.00", "45.00"],
    ]
    assert (
        "step 10: 45.00 ms: until the first gradient 10.00, backward 20.00, wait 15.00; buckets were under way for "
        "33.00 ms, 55% of it beside the backward pass"
    ) in done.output
    assert trace.with_suffix(".png").stat().st_size > 10_000


def test_buckets_in_flight_together_have_rows_of_their_own(trace: Path) -> None:
    step = read(trace)[1]
    boxes = side_by_side(traced_boxes(step, {"a": 0, "b": 1, "c": 2}))
    sending = {box.name: box.row for box in boxes if box.task == "allgather"}
    assert sending == {"a": "communication", "b": "communication 2", "c": "communication"}
    for row in {box.row for box in boxes}:
        within = [box for box in boxes if box.row == row]
        assert all(one.end_ns <= following.start_ns for one, following in pairwise(within))


def test_a_step_that_is_not_there(trace: Path) -> None:
    done = run(trace, "--step", 7)
    assert done.exit_code == 2
    assert "step 7 is not in it; there are [0, 10]" in done.output
