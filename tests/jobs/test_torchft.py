"""Replicas of a torchft Manager that are killed and stopped while they train by whole numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.torchft_fleet import fleet

pytestmark = pytest.mark.level2


@pytest.mark.parametrize("quorum", ["async", "sync"])
def test_a_replica_is_killed_and_another_comes(tmp_path: Path, quorum: str) -> None:
    with fleet(tmp_path, "dense", quorum) as job:
        job.start(0, 1, 2)
        job.until_steps(0, 5)
        job.kill(1)
        before = len(job.log())
        job.until_steps(0, 5)
        assert " of 2\n" in job.log()[before:]
        job.start(1)
        job.until_steps(1, 3)
        job.until_end()
        job.require_exact()


def test_a_replica_that_was_stopped_keeps_what_it_owes(tmp_path: Path) -> None:
    with fleet(tmp_path, "topk", "async") as job:
        job.start(0, 1, 2)
        job.until_steps(0, 5)
        with job.stopped(1):
            job.until_steps(0, 5)
        job.until_steps(1, 3)
        job.until_end()
        job.require_exact()


@pytest.mark.parametrize(("compression", "quorum"), [("dense", "sync"), ("topk", "async"), ("topk", "sync")])
def test_local_steps(tmp_path: Path, compression: str, quorum: str) -> None:
    """What a replica has learned in a round that fails goes into the next one."""
    with fleet(tmp_path, compression, quorum, "torchft_local") as job:
        job.start(0, 1, 2)
        job.until_steps(0, 5)
        if compression == "dense":
            job.kill(1)
            job.until_steps(0, 3)
            job.start(1)
        else:
            with job.stopped(1):
                job.until_steps(0, 3)
        job.until_steps(1, 3)
        job.until_end()
        job.require_exact()


def test_local_steps_of_replicas_that_two_ranks_share(tmp_path: Path) -> None:
    with fleet(tmp_path, "topk", "sync", "torchft_sharded") as job:
        job.start(0, 1)
        job.until_steps(0, 3)
        job.start(2)
        job.until_steps(2, 2)
        with job.stopped(1):
            job.until_steps(0, 3)
        job.until_steps(1, 3)
        job.until_end()
        job.require_exact()


def test_a_replica_that_asks_for_something_else_ends_and_the_others_go_on(tmp_path: Path) -> None:
    with fleet(tmp_path, "topk", "sync") as job:
        job.start(0, 1)
        job.until_steps(0, 5)
        other = job.start_apart(2, "dense")
        assert other.wait(120) == 1
        job.until_steps(0, 5)
        job.until_end()
        job.require_exact()
        assert "this rank, 2, cannot train with the others: compression is " in job.log()
