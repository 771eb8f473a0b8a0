"""HVD_COMPRESS_LOG and HVD_COMPRESS_TENSORBOARD of real jobs of every kind of request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from tests.brought import brought
from tests.jobs.launch import launch
from tests.logged import events_of
from tests.unit.events.test_tensorboard import scalars

NAMES = ("int4", "plan", "momentum", "topk", *dict(brought("FIXED")))
PLAN = '{"version": 1, "default": {"compressor": {"name": "blocks", "bits": 8}, "collective": "auto"}}'


@pytest.mark.parametrize(("launcher", "ranks"), [("horovodrun", 2), ("mpirun", 1)])
def test_they_hold_how_buckets_travel_and_what_that_takes(launcher: str, ranks: int, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PLAN)
    job = launch(launcher, "logged", ranks=ranks, LOGS=str(tmp_path), HOROVOD_FUSION_THRESHOLD="1000")
    assert job.status == 0, job.output
    trained = dict(re.findall(r"\[rank 0\] (\w+): (\d) buckets", job.output))
    assert trained.keys() == set(NAMES), job.output
    for name, buckets in trained.items():
        events = events_of(tmp_path / f"{name}.jsonl")
        for kind in ("choice", "window"):
            assert {event.bucket for event in events if event.kind == kind} == set(range(int(buckets))), name
        assert all(event.reason for event in events if event.kind == "choice")
        assert all(event.measured_s > 0 for event in events if event.kind == "window")
        assert scalars(tmp_path / name)["bucket 0/measured_s"]
        for command in brought("LOG_READERS"):
            told = CliRunner(env={"COLUMNS": "300"}).invoke(main, [command, str(tmp_path / f"{name}.jsonl")])
            assert told.exit_code == 0, told.output
            assert events[0].reason in told.output


def test_ranks_choose_alike_what_a_request_leaves_open(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PLAN)
    variables = {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0", "HVD_COMPRESS_CACHE": str(tmp_path)}
    job = launch("mpirun", "logged", ranks=3, LOGS=str(tmp_path), HOROVOD_FUSION_THRESHOLD="1000", **variables)
    assert job.status == 0, job.output
    for name, prefix in {"int4": "", "plan": "planned: ", "momentum": ""}.items():
        told = re.findall(rf"\[rank \d\] reasons of {name}: (.*)", job.output)
        assert len(told) == 3, job.output
        assert len(set(told)) == 1
        by = r"[\d.]+ ms by curves of (this|an earlier) job, (next|within 10% of) "
        by = r"[a-z-]+, [\d.]+ ms a step not hidden; " if name == "int4" else by
        assert re.match(rf"\['{prefix}{by}", told[0]), told
