"""Lightning and Fabric with compressed gradients: two ranks over gloo."""

from __future__ import annotations

import pytest

from tests.unit.integrations.job import run_jobs

JOBS = {
    "trains": 2,
    "resumes": 2,
    "fits_again": 2,
    "fails": 2,
    "by_hand": 2,
    "follows": 2,
    "refuses": 2,
    "with_fabric": 2,
    "in_pytorch_lightning": 2,
    "the_example": 2,
    "the_pages": 2,
    "in_forked_ranks": 1,
    "in_one_process": 1,
}


def test_two_ranks(subtests: pytest.Subtests) -> None:
    """One test, so that Lightning is imported once, whatever worker of pytest-xdist takes it."""
    for name, ranks in run_jobs("tests.unit.integrations.lightning_jobs", JOBS).items():
        with subtests.test(name):
            errors = [f"rank {rank}: {end.error or 'died'}" for rank, end in enumerate(ranks) if end.error or end.died]
            assert not errors, "\n".join(errors)
