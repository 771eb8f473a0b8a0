"""Lightning and Fabric with compressed gradients: two ranks over gloo."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.unit.frontends.ddp.job import Job, end_of_jobs, values_of

BODIES = "tests.unit.integrations.lightning_jobs"
RANKS = {
    "trains": 2,
    "resumes": 2,
    "fits_again": 2,
    "fails": 2,
    "by_hand": 2,
    "follows": 2,
    "takes_local_steps": 2,
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
    jobs = [Job(call, [name], ranks) for name, ranks in RANKS.items()]
    for name, ended in zip(RANKS, end_of_jobs(jobs, [BODIES]), strict=True):
        with subtests.test(name):
            values_of(ended)


def call(rank: int, name: str) -> None:
    """Call a function of a module that this one does not import, as it imports Lightning."""
    getattr(import_module(BODIES), name)(rank)
