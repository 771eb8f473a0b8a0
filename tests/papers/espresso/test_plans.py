"""A plan from a profile in a real job: it decides as planned, and its timeline is compared with the prediction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path as Way
from hvd_compress.policies.plan_schema import read
from hvd_compress.policies.plan_settings import compressor_of
from tests.jobs.launch import launch
from tests.unit.profiler import profile_files

RANKS = 4


@pytest.mark.level1
def test_four_ranks_do_what_was_planned(tmp_path: Path) -> None:
    profile = profile_files.write(tmp_path / "profile", **profile_files.said(1, RANKS))
    plan, timeline, picture = (tmp_path / name for name in ("plan.json", "timeline.json", "both.png"))
    made = CliRunner().invoke(main, ["plan", "make", str(profile), "-o", str(plan), "--budget", "1", "--devices", "1"])
    assert made.exit_code == 0, made.output
    variables = {"HVD_COMPRESS_TIMELINE": str(timeline), "HVD_COMPRESS_TIMELINE_EVERY": "2"}
    job = launch("mpirun", "planned", str(plan), ranks=RANKS, **variables)
    assert job.status == 0, job.output
    entries = read(plan).buckets
    compressors: list[Compressor] = [compressor_of(entry.compressor) for entry in entries]
    assert any(compressor.compresses for compressor in compressors)
    found = re.search(r"decisions: (.*)", job.output)
    assert found is not None, job.output
    assert json.loads(found[1]) == [
        [list(entry.parameters), str(Way(entry.collective, entry.algorithm)), compressor.sent_ratio]
        for entry, compressor in zip(entries, compressors, strict=True)
    ]
    compared = CliRunner().invoke(main, ["plan", "compare", str(plan), str(timeline), "--picture", str(picture)])
    assert compared.exit_code == 0, compared.output
    for term in ("computation", "compression", "communication", "step"):
        assert re.search(rf"^ {term}\S* ", compared.output, re.MULTILINE), compared.output
    assert picture.read_bytes().startswith(b"\x89PNG")
