"""How jobs end: well, or by themselves, with a status that is not 0 and a message where somebody is left to give it."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launch import LIMIT_S, Job, launch

TWO_WAYS = [("mpirun", "mpi"), ("horovodrun", "auto")]
"""Launcher and engine."""

TIMEOUT_S = "3"

TIMED_OUT = (
    rf"\[rank 0\] CommunicationError: rank 0, step 3, bucket \d \((weight|bias)\): no answer within {TIMEOUT_S} s "
    r"\(HVD_COMPRESS_TIMEOUT_S\) in \w+ \(auto\) of \d+ bytes: rank 1 has not arrived\. A rank that "
    r"evaluates, saves .* raise HVD_COMPRESS_TIMEOUT_S, .* Otherwise that rank .* has died, is stopped"
)


def train(launcher: str, engine: str, misfortune: str, step: int = 3, ranks: int = 2) -> Job:
    """Run a training whose rank 1 meets a misfortune."""
    # Short only where the end of the patience is awaited: a busy machine must fail nothing else.
    patience = TIMEOUT_S if misfortune in ("is stopped", "does something else") else str(LIMIT_S)
    variables = {"PATIENCE_S": patience, "HVD_COMPRESS_TIMEOUT_S": str(LIMIT_S), "HOROVOD_FUSION_THRESHOLD": "1000"}
    moment = "unlucky" if misfortune == "is interrupted with all others" else None
    job = launch(launcher, "train", engine, misfortune, str(step), ranks=ranks, interrupt_at=moment, **variables)
    assert job.survivors == [], f"processes are left:\n{job.output}"
    assert "unlucky" in job.files, job.output
    return job


def check_failed(job: Job, message: str = "") -> None:
    assert job.status != 0, job.output
    assert re.search(message, job.output), job.output
    assert "has trained" not in job.output


FIRST = pytest.mark.level1
GOOD = [*(pytest.param(*way, marks=FIRST) for way in TWO_WAYS), ("mpirun", "horovod"), ("horovodrun over MPI", "auto")]


@pytest.mark.parametrize(("launcher", "engine"), GOOD)
def test_a_good_run_ends_with_status_0(launcher: str, engine: str) -> None:
    job = train(launcher, engine, "none")
    assert job.status == 0, job.output
    assert sorted(re.findall(r"\[rank (\d)\] has trained", job.output)) == ["0", "1"]


@pytest.mark.parametrize(
    ("launcher", "engine", "misfortune"),
    [
        pytest.param("mpirun", "mpi", "dies", marks=FIRST),
        ("mpirun", "horovod", "is killed"),
        pytest.param("horovodrun", "auto", "is killed", marks=FIRST),
    ],
)
def test_a_rank_that_dies(launcher: str, engine: str, misfortune: str) -> None:
    check_failed(train(launcher, engine, misfortune))


@pytest.mark.parametrize(("launcher", "engine"), TWO_WAYS)
def test_a_rank_that_is_stopped(launcher: str, engine: str) -> None:
    check_failed(train(launcher, engine, "is stopped"), TIMED_OUT)


@pytest.mark.parametrize("misfortune", ["none", "is stopped"])
def test_with_two_buckets_in_flight(misfortune: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_IN_FLIGHT", "2")
    job = train("mpirun", "mpi", misfortune)
    if misfortune == "none":
        assert job.status == 0, job.output
    else:
        check_failed(job, TIMED_OUT)


@pytest.mark.parametrize(("engine", "hosts", "asked", "then"), [("mpi", 2, "7", 7), ("horovod", 2, "", 0)])
def test_horovods_thread_gives_way_where_gradients_travel_without_it(
    engine: str, hosts: int, asked: str, then: int
) -> None:
    job = launch("mpirun", "nice", engine, str(hosts), HVD_COMPRESS_HOROVOD_NICENESS=asked)
    assert job.status == 0, job.output
    for rank in range(2):
        assert f"rank {rank}: [0], then {[0, then] if then else [0]}" in job.output


def test_a_rank_that_does_something_else() -> None:
    """The one of three that has not arrived is named, and not the one that waits, too."""
    job = train("mpirun", "mpi", "does something else", ranks=3)
    check_failed(job, TIMED_OUT)
    assert "rank 2 has not arrived" not in job.output
    assert "ranks 1, 2 have not" not in job.output


def test_a_rank_that_is_stopped_before_the_first_step() -> None:
    message = (
        r"\[rank 0\] CommunicationError: first step, .*no answer within .* in the choice of the engine: "
        r"rank 1 has not arrived\."
    )
    check_failed(train("mpirun", "mpi", "is stopped", step=0), message)


# What a rank does when Python ends it is alike under both launchers; that they end the others is seen with each.
@pytest.mark.parametrize(
    ("launcher", "engine", "when"),
    [("mpirun", "mpi", "raises"), ("horovodrun", "auto", "raises in the backward pass")],
)
def test_an_exception_on_one_rank(launcher: str, engine: str, when: str) -> None:
    check_failed(train(launcher, engine, when), r"\[rank 1\] ValueError: bad luck")


@pytest.mark.parametrize(("launcher", "engine"), TWO_WAYS)
def test_one_rank_exits_with_a_status(launcher: str, engine: str) -> None:
    check_failed(train(launcher, engine, "exits"))


def test_one_rank_is_interrupted_while_it_waits_in_a_step() -> None:
    check_failed(train("mpirun", "mpi", "is interrupted"), r"\[rank 1\] KeyboardInterrupt")


@pytest.mark.parametrize(("launcher", "engine"), TWO_WAYS)
def test_ctrl_c(launcher: str, engine: str) -> None:
    """The launcher ends the ranks, in whichever part of a step each is."""
    check_failed(train(launcher, engine, "is interrupted with all others"))


def test_an_exception_on_one_rank_before_the_first_step() -> None:
    check_failed(train("mpirun", "mpi", "raises", step=0), r"\[rank 1\] ValueError: bad luck")


@pytest.mark.parametrize(("launcher", "engine"), TWO_WAYS)
def test_a_rank_that_has_fewer_steps(launcher: str, engine: str) -> None:
    """Horovod shuts itself down on all ranks, and MPI with it, under the collective that waits for that rank."""
    message = r"CommunicationError: rank 0, step 3, bucket \d .*broadcast \(auto\) of 64 bytes: .*shut"
    check_failed(train(launcher, engine, "leaves"), message)


def test_a_rank_that_ends_while_another_is_slower_in_the_last_collectives() -> None:
    job = launch("mpirun", "ends_first")
    assert job.status == 0, job.output
    assert sorted(re.findall(r"\[rank (\d)\] received \[6.0, 8.0\]", job.output)) == ["0", "1"]


def test_a_second_backward_pass_on_one_rank() -> None:
    check_failed(train("mpirun", "mpi", "goes back twice"), r"\[rank 1\] UsageError: the gradient of '\w+' was")


def test_every_rank_says_what_differs() -> None:
    job = launch("mpirun", "differ")
    assert job.status != 0
    assert job.survivors == []
    for rank in range(2):
        told = rf"\[rank {rank}\] ConfigError: rank {rank}, first step, handshake: settings differ between ranks: "
        assert re.search(told + ".*ratio=0.1.* on rank 0 and .*ratio=0.2.* on rank 1", job.output), job.output


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_that_keeps_importing_horovod(when: str) -> None:
    job = launch("mpirun", "patched", when)
    assert job.status == 0, job.output
    assert sorted(re.findall(r"\[rank (\d)\] sent by star with ring", job.output)) == ["0", "1"]


@pytest.mark.parametrize(
    ("launcher", "dtype"),
    [pytest.param("mpirun", "float32", marks=FIRST), ("horovodrun", "bfloat16")],
)
def test_readmes_own_lines(launcher: str, dtype: str) -> None:
    """With other weights and other data on each rank, they end with the same weights, bit by bit."""
    job = launch(launcher, "readme", dtype)
    assert job.status == 0, job.output
    told = re.findall(r"\[rank (\d)\] trained to (\w{64})", job.output)
    assert sorted(rank for rank, _ in told) == ["0", "1"], job.output
    assert len({digest for _, digest in told}) == 1, job.output
