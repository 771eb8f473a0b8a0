"""Jobs whose path or ratio is left open, over real MPI and Gloo, and on a slow network."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.jobs.launch import launch


def test_ranks_choose_alike_and_say_why(tmp_path: Path) -> None:
    log = tmp_path / "choices.jsonl"
    variables = {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0", "HVD_COMPRESS_CACHE": str(tmp_path)}
    job = launch("horovodrun", "adapt", "none", ranks=2, HVD_COMPRESS_LOG=str(log), **variables)
    assert job.status == 0, job.output
    ends = re.findall(r"\[rank \d\] chose (.*)", job.output)
    assert len(ends) == 2, job.output
    assert ends[0] == ends[1]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(event["kind"] == "choice" and event["reason"] for event in events)


def test_a_rank_that_is_killed_while_they_choose(tmp_path: Path) -> None:
    variables = {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0", "HVD_COMPRESS_CACHE": str(tmp_path)}
    traces = {"HVD_COMPRESS_TIMELINE": str(tmp_path / "rank{rank}.json"), "HVD_COMPRESS_TIMELINE_EVERY": "1"}
    job = launch("mpirun", "adapt", "killed", ranks=2, **variables, **traces)
    assert job.status != 0, job.output
    assert "chose" not in job.output
    assert job.survivors == []
    for rank in range(2):  # what both saw until then can be read
        events = json.loads((tmp_path / f"rank{rank}.json").read_text())
        decoded = [event for event in events if event.get("name") == "DECODE"]
        assert [event["args"]["step"] for event in decoded] == list(range(5))
        assert any(event.get("name") in ("MPI_ALLREDUCE", "MPI_ALLGATHER") for event in events)
