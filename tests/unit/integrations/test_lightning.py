"""Lightning and Fabric with compressed gradients: two ranks over gloo."""

from __future__ import annotations

import pytest

from tests.unit.integrations.job import run_jobs

JOBS = (
    "trains",
    "resumes",
    "fits_again",
    "fails",
    "by_hand",
    "follows",
    "refuses",
    "with_fabric",
    "in_pytorch_lightning",
    "the_example",
)


def test_two_ranks(subtests: pytest.Subtests) -> None:
    """One test, so that Lightning is imported once, whatever worker of pytest-xdist takes it."""
    for name, ranks in run_jobs("tests.unit.integrations.lightning_jobs", JOBS).items():
        with subtests.test(name):
            errors = [f"rank {rank}: {end.error or 'died'}" for rank, end in enumerate(ranks) if end.error or end.died]
            assert not errors, "\n".join(errors)
