"""Embedding tables in jobs that are killed: training goes on from the last checkpoint with the same bits."""

from __future__ import annotations

import random
import re
from pathlib import Path

from tests.jobs.launch import Job, launch

STEPS, RANKS = 30, 2


def digests(job: Job) -> dict[str, str]:
    found = dict(re.findall(r"\[rank (\d)\] (\w{16})", job.output))
    assert len(found) == RANKS, job.output
    return found


def test_a_rank_that_is_killed_and_killed_again(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = digests(launch("mpirun", "embedding", str(STEPS), str(whole), ranks=RANKS))
    draw = random.Random(1)
    for killed_step in (2, 17):
        moment = (str(draw.randrange(RANKS)), str(killed_step), f"{draw.random() * 0.03:.4f}")
        job = launch("mpirun", "embedding", str(STEPS), str(broken), *moment, ranks=RANKS, HVD_COMPRESS_TIMEOUT_S="20")
        assert job.status != 0, job.output
        assert not job.survivors
    last = launch("mpirun", "embedding", str(STEPS), str(broken), ranks=RANKS)
    assert "begins with step 16" in last.output or "begins with step 20" in last.output, last.output
    assert digests(last) == expected
