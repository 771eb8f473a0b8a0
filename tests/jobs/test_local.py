"""Local steps in whole jobs."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import launch

RUNTIMES = {"mpirun": "horovod", "torchrun": "torch"}


@pytest.mark.level2
@pytest.mark.parametrize("launcher", RUNTIMES)
def test_a_training_goes_on_from_the_middle_of_a_round_to_the_bit(launcher: str) -> None:
    job = launch(launcher, "local_steps", ranks=2, HVD_COMPRESS_RUNTIME=RUNTIMES[launcher])
    assert job.status == 0, job.output
    assert len(re.findall(r"\[rank \d\] is done", job.output)) == 2
    assert job.survivors == []


TROUBLE = [
    ("mpirun", "is stopped"),
    ("mpirun", "leaves"),
    ("torchrun", "is killed"),
    ("torchrun", "is stopped"),
    ("torchrun", "raises"),
    ("torchrun", "evaluates alone"),
]
ERRORS = {
    "is stopped": r"CommunicationError: rank [02], step \d+.*no answer within 3 s",
    "evaluates alone": r"(CommunicationError|PayloadError): rank [02], step \d+",  # its message meets a bucket
}
"""Where somebody is left to say it."""


@pytest.mark.level2
@pytest.mark.parametrize(("launcher", "misfortune"), TROUBLE)
def test_a_rank_in_trouble_ends_the_job(launcher: str, misfortune: str) -> None:
    """In the middle of a round, while what was launched is on its way; the others wait for it in the next exchange."""
    variables = {"HVD_COMPRESS_RUNTIME": RUNTIMES[launcher], "HVD_COMPRESS_TIMEOUT_S": "3"}
    job = launch(launcher, "local_trouble", misfortune, ranks=3, **variables)
    assert job.status != 0, job.output
    assert job.survivors == [], job.output
    assert "is done" not in job.output
    if misfortune in ERRORS:
        assert re.search(rf"\[rank [02]\] {ERRORS[misfortune]}", job.output), job.output
