"""Calls by Horovod's names, in a job of one rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.runtime import api as hvd
from hvd_compress.runtime import world


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_before_init_there_is_an_error_as_of_horovod() -> None:
    hvd.shutdown()
    for kind in (ValueError, UsageError):
        with pytest.raises(kind, match=r"hvd.init\(\) comes first"):
            hvd.rank()
    assert not hvd.mpi_enabled()
    assert not hvd.gloo_enabled()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (0.5, "takes a tensor, not a float: pass torch.tensor"),
        (torch.ones(2).to_sparse(), "takes dense tensors, not one of torch.sparse_coo"),
        (torch.ones(2).to(torch.float8_e5m2), "of float8_e5m2 has no Average"),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_counts_for_nothing(given: object, words: str) -> None:
    """Ranks that have come to it by another branch still mean the same by a tensor without a name."""
    before = dict(world.world().counts)
    with pytest.raises(ConfigError, match=words):
        hvd.allreduce_async(given)
    assert world.world().counts == before


def test_a_minimum_of_complex_numbers_is_refused_and_their_mean_is_not() -> None:
    with pytest.raises(ConfigError, match="complex64 has no Min"):
        hvd.allreduce_async(torch.ones(2, dtype=torch.complex64), op=hvd.Min)
    conjugated = torch.tensor([1 + 2j]).conj()
    assert hvd.allreduce_(conjugated) is conjugated
    assert conjugated.tolist() == [1 - 2j]


@pytest.mark.parametrize("call", [hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter])
def test_a_group_without_tensors_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match="has no tensors"):
        call([])


def test_groups_are_tuples_as_of_horovod() -> None:
    tensors = [torch.ones(2), torch.zeros(1)]
    found = hvd.synchronize(hvd.grouped_allreduce_async(tensors))
    assert isinstance(found, tuple)
    assert [each.tolist() for each in found] == [[1, 1], [0]]
    assert hvd.grouped_allreduce_(tensors) == tuple(tensors)


@pytest.mark.parametrize("call", [hvd.broadcast_object, hvd.allgather_object])
def test_an_object_that_cannot_be_pickled_is_named(call: object) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match="the object of rank 0 cannot be pickled"):
        call(each for each in ())


def test_a_process_set_takes_ranks() -> None:
    with pytest.raises(ConfigError, match="is a list of ranks, not 3"):
        hvd.ProcessSet(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [[1], [0, 0]])
def test_a_job_of_ranks_that_are_not_there_or_twice_is_refused(ranks: list[int]) -> None:
    hvd.shutdown()
    with pytest.raises(ConfigError, match=r"init\(\) (takes ranks below 1|numbers ranks in the job's order)"):
        hvd.init(ranks)


def test_a_forked_process_knows_its_rank_and_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker of a DataLoader: its end is not that of the rank."""
    child = os.fork()
    if child == 0:
        try:
            hvd.shutdown()
        finally:
            os._exit(int(world._world is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hvd.allreduce(torch.ones(1)).item() == 1


def test_shutdown_in_a_handler_that_interrupts_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the call, which waits for it. Here the signal comes in the middle of each."""
    negotiator = world.world().runtime._negotiator
    before = signal.signal(signal.SIGUSR1, lambda *_: hvd.shutdown())
    try:
        for method, call in (("submit", lambda: hvd.allreduce(torch.ones(2), name="x")), ("join", hvd.join)):
            with monkeypatch.context() as patch:
                patch.setattr(negotiator, method, lambda *_: signal.raise_signal(signal.SIGUSR1))
                with pytest.raises(UsageError, match="shutdown\\(\\) in a signal's handler"):
                    call()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert hvd.is_initialized()
    assert hvd.allreduce(torch.ones(2), name="x").tolist() == [1, 1]
    assert hvd.join() == 0
