"""Embedding tables in jobs that are killed: training goes on with the same bits, from a checkpoint or a journal."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.jobs.launch import Job, launch

pytestmark = pytest.mark.level2

STEPS, RANKS = 30, 2
PROGRAMS = Path(__file__).parent / "programs"
TRAIN, JOURNALED, WRAPS = PROGRAMS / "embedding.py", PROGRAMS / "journaled.py", PROGRAMS / "loaders.py"


def digests(job: Job, ranks: int = RANKS) -> dict[str, str]:
    found = dict(re.findall(r"\[rank (\d)\] (\w{16})", job.output))
    assert len(found) == ranks, job.output
    return found


def test_a_rank_that_is_killed_and_killed_again(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = digests(launch("mpirun", TRAIN, str(STEPS), str(whole), ranks=RANKS))
    draw = random.Random(1)
    for killed_step in (2, 17):
        moment = (str(draw.randrange(RANKS)), str(killed_step), f"{draw.random() * 0.03:.4f}")
        job = launch("mpirun", TRAIN, str(STEPS), str(broken), *moment, ranks=RANKS, HVD_COMPRESS_TIMEOUT_S="20")
        assert job.status != 0, job.output
        assert not job.survivors
    last = launch("mpirun", TRAIN, str(STEPS), str(broken), ranks=RANKS)
    assert "begins with step 16" in last.output or "begins with step 20" in last.output, last.output
    assert digests(last) == expected


@pytest.mark.parametrize(("launcher", "front", "servers"), [("mpirun", "horovod", 0), ("torchrun", "ddp", 1)])
def test_a_journal_loses_a_step_at_most(tmp_path: Path, launcher: str, front: str, servers: int) -> None:
    """Rank 0, which removes old bases, and the last one, which is the server if there is one."""
    whole, broken, ranks = tmp_path / "whole", tmp_path / "broken", RANKS + servers

    def job(folder: Path, *moment: str) -> Job:
        return launch(launcher, JOURNALED, front, str(STEPS), str(folder), str(servers), *moment, ranks=ranks)

    expected = digests(job(whole), ranks)
    rank = {"horovod": 0, "ddp": ranks - 1}[front]
    killed = job(broken, str(rank), "22", f"{random.Random(servers).random() * 0.01:.4f}")
    assert killed.status != 0, killed.output
    assert not killed.survivors
    last = job(broken)
    begun = re.search(r"begins with step (\d+)", last.output)
    assert begun is not None, last.output
    assert int(begun[1]) >= 21
    assert digests(last, ranks) == expected


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_loaders_that_are_wrapped_anew_keep_nothing(launcher: str) -> None:
    job = launch(launcher, WRAPS, ranks=2)
    assert job.status == 0, job.output
    assert re.findall(r"^(\w+) keeps nothing$", job.output, re.MULTILINE) == ["lookahead", "closed"]
