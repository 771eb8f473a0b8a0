"""Local steps in whole jobs."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import launch


@pytest.mark.level2
@pytest.mark.parametrize(("launcher", "runtime"), [("mpirun", "horovod"), ("torchrun", "torch")])
def test_a_training_goes_on_from_the_middle_of_a_round_to_the_bit(launcher: str, runtime: str) -> None:
    job = launch(launcher, "local_steps", ranks=2, HVD_COMPRESS_RUNTIME=runtime)
    assert job.status == 0, job.output
    assert len(re.findall(r"\[rank \d\] is done", job.output)) == 2
    assert job.survivors == []
