"""Collectives by name in whole jobs, over MPI and over torch.distributed, without Horovod; and ranks in trouble."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import launch


@pytest.mark.level2
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_every_collective(launcher: str) -> None:
    job = launch(launcher, "runtime", "none", ranks=3)
    assert job.status == 0, job.output
    assert sorted(re.findall(r"\[rank (\d)\] has done all False", job.output)) == ["0", "1", "2"]
    assert job.survivors == []


X = "allreduce of 'allreduce.x'"


@pytest.mark.level2
@pytest.mark.parametrize(
    ("launcher", "misfortune", "unlucky", "error"),
    [
        ("torchrun", "dies", 2, f"CommunicationError: {X}: rank 2 is gone"),
        ("torchrun", "dies", 0, f"CommunicationError: {X}: rank 0 is gone"),
        ("torchrun", "leaves", 2, f"CommunicationError: {X}: rank 2 has shut down"),
        ("mpirun", "leaves", 0, f"CommunicationError: {X}: rank 0 has shut down"),
        ("mpirun", "raises", 2, f"CommunicationError: {X}: rank 2 has shut down"),
        ("mpirun", "is stopped", 1, f"CommunicationError: {X}: rank 1 did not submit it within 3 s, as ranks 0, 2 did"),
        ("mpirun", "is stopped", 0, f"CommunicationError: {X}: rank 0 has been silent for 8 s: it is stopped"),
        ("mpirun", "another shape", 2, rf"RanksDifferError: {X}: rank 0 wants .*\[3\].*, and rank 2 .*\[4\]"),
        ("torchrun", "another name", 2, f"CommunicationError: {X}: rank 2 did not submit it within 3 s, as ranks 0, 1"),
        ("mpirun", "sleeps", 2, f"CommunicationError: {X}: rank 2 did not submit it within 3 s"),
    ],
)
def test_a_rank_in_trouble_is_named_on_all_others(launcher: str, misfortune: str, unlucky: int, error: str) -> None:
    job = launch(launcher, "runtime", misfortune, str(unlucky), ranks=3, HVD_COMPRESS_TIMEOUT_S="3")
    assert job.status != 0, job.output
    assert job.survivors == [], job.output
    for rank in {0, 1, 2} - {unlucky}:
        told = rf"\[rank {rank}\] ({error}|CommunicationError: {X}: rank 0 has shut down, after rank {unlucky} )"
        assert re.search(told, job.output), job.output


@pytest.mark.level2
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_who_begins_anew_alone_does_not_wait_without_a_limit(launcher: str) -> None:
    job = launch(launcher, "runtime", "begins anew alone", "0", ranks=2, HVD_COMPRESS_TIMEOUT_S="3")
    assert job.status != 0, job.output
    assert job.survivors == [], job.output


@pytest.mark.level2
@pytest.mark.parametrize(
    ("launcher", "what", "ranks"),
    [
        ("mpirun", "normalises", 2),
        ("torchrun", "adasum", 2),
        ("torchrun", "part, then all", 3),
        ("mpirun", "part, then all", 3),
    ],
)
def test_the_drop_in_without_horovod(launcher: str, what: str, ranks: int) -> None:
    """And once more after shutdown() and init()."""
    variables = {"HVD_COMPRESS_RUNTIME": "torch", "HVD_COMPRESS_TIMEOUT_S": "60"}
    job = launch(launcher, "without_horovod", what, ranks=ranks, **variables)
    assert job.status == 0, job.output
    assert len(re.findall(r"\[rank \d\] is done", job.output)) == ranks
    assert job.survivors == []


@pytest.mark.level2
@pytest.mark.parametrize("compression", ["int4", "topk", "dense"])
def test_training_has_the_bits_of_a_job_over_horovod(compression: str) -> None:
    """With the same engine, MPI: only what ranks say beside their gradients travels otherwise."""
    jobs = {
        runtime: launch("mpirun", "same_bits", compression, "mpi", "50", HVD_COMPRESS_RUNTIME=runtime)
        for runtime in ("horovod", "torch")
    }
    bits = {runtime: re.findall(r"\[rank \d\] ([0-9a-f]{64})", job.output) for runtime, job in jobs.items()}
    assert all(job.status == 0 for job in jobs.values()), jobs
    assert len(set(bits["horovod"] + bits["torch"])) == 1, bits
    assert len(bits["horovod"]) == len(bits["torch"]) == 2
