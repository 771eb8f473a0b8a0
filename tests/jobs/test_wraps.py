"""Models and optimizers that are wrapped anew in one process: what earlier ones had is used again."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import launch


@pytest.mark.parametrize(("launcher", "fronts"), [("torchrun", ("ddp", "fsdp")), ("mpirun", ("drop_in",))])
def test_they_keep_nothing(launcher: str, fronts: tuple[str, ...]) -> None:
    job = launch(launcher, "wraps", *fronts, ranks=2)
    assert job.status == 0, job.output
    assert re.findall(r"^(\w+) keeps nothing$", job.output, re.MULTILINE) == list(fronts)


def test_where_a_rank_may_open_no_more_files_all_say_so() -> None:
    job = launch("torchrun", "wraps", "limit", ranks=2)
    assert job.status == 0, job.output
    told = re.findall(r"^\[rank (\d)\] .*rank 1: \d+ files are open of the \d+ .*ulimit -n", job.output, re.MULTILINE)
    assert sorted(told) == ["0", "1"], job.output
