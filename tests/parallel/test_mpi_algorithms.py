"""Open MPI's algorithms are really forced, and one that is not is found out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS, Engine
from hvd_compress.errors import UnsupportedError
from tests.parallel.training import ENGINES

if TYPE_CHECKING:
    from mpi4py import MPI

pytestmark = pytest.mark.skipif("mpi" not in ENGINES, reason="needs mpirun")


def test_all_algorithms_were_seen_to_run():
    from hvd_compress.engines.mpi import MpiEngine

    engine = MpiEngine()
    assert engine.capabilities.algorithms == ALGORITHMS
    engine.close()


def test_they_differ_in_what_the_ranks_sum():
    """Each communicator leaves its own pattern; with two ranks ring and Rabenseifner are the same algorithm."""
    from mpi4py import MPI

    from hvd_compress.engines import mpi_algorithms

    world = MPI.COMM_WORLD
    count = mpi_algorithms.probe_count(world.size)
    forced = mpi_algorithms.forced_communicators(world)
    patterns = {name: world.allgather(mpi_algorithms.observe(comm, count)) for name, comm in forced.items()}
    different = {str(sorted(pattern)) for pattern in patterns.values()}
    assert len(different) == (3 if world.size == 2 else 4)
    if world.size == 4:
        n = count
        assert patterns["ring"] == [[n // 4] * 3] * 4
        assert patterns["tree"] == [[n, n], [], [n], []]
        assert patterns["recursive_doubling"] == [[n, n]] * 4
        assert patterns["rabenseifner"] == [[n // 2, n // 4]] * 4
    for comm in forced.values():
        comm.Free()


def test_an_allreduce_runs_the_algorithm_that_was_asked_for(monkeypatch):
    """Seen through the engine's own call: its sum is replaced by an operation that notes what it is given."""
    from mpi4py import MPI

    from hvd_compress.engines import mpi_algorithms
    from hvd_compress.engines.mpi import MpiEngine

    engine = MpiEngine()
    count = mpi_algorithms.probe_count(engine.world_size)
    lengths: list[int] = []
    recorder = MPI.Op.Create(lambda given, _total, _type: lengths.append(given.nbytes // 4), commute=True)
    monkeypatch.setattr(MPI, "SUM", recorder)
    for algorithm in ALGORITHMS:
        lengths.clear()
        engine.allreduce(torch.ones(count), algorithm)
        seen = sorted(MPI.COMM_WORLD.allgather(lengths))
        assert seen == mpi_algorithms.expected(algorithm, engine.world_size, count)
    recorder.Free()
    engine.close()


@pytest.mark.parametrize("hosts", [range(4), (0, 0, 0, 0), (0, 1, 1, 2)], ids=["apart", "together", "two of one"])
def test_a_large_allreduce_among_hosts_goes_around_a_ring(hosts: Sequence[int], monkeypatch):
    """Where none is asked for; what is smaller goes to owners, and what stays on a host is Open MPI's choice."""
    from hvd_compress.engines import mpi, mpi_hosts

    engine = mpi.MpiEngine()
    numel, sent = 1003, []
    monkeypatch.setattr(mpi, "RING_SHARD_BYTES", 4 * numel // engine.world_size)
    monkeypatch.setattr(engine, "_hosts", tuple(hosts[: engine.world_size]))
    ring = mpi_hosts.ring

    def seen(comm: MPI.Intracomm, tensor: torch.Tensor, message: Callable[[torch.Tensor], list[Any]]) -> None:
        sent.append(tensor.numel())
        ring(comm, tensor, message)

    monkeypatch.setattr(mpi_hosts, "ring", seen)
    for length in (numel, numel // 2, 1):
        for dtype in (torch.float32, torch.int32):
            tensor = torch.arange(length).to(dtype) + engine.rank
            engine.allreduce(tensor)
            ranks = engine.world_size * (engine.world_size - 1) // 2
            assert torch.equal(tensor, engine.world_size * torch.arange(length).to(dtype) + ranks)
    assert sent == ([] if hosts == (0, 0, 0, 0) else [numel, numel])
    engine.close()


def test_forced_broadcasts_and_allgathers_are_offered_with_their_communicators():
    from hvd_compress.engines.mpi import MpiEngine

    engine = MpiEngine()
    assert engine.capabilities.broadcasts == BROADCASTS
    assert engine.capabilities.allgathers == ALLGATHERS
    engine.close()


def finishes_without(engine: Engine, algorithm: str, absent: set[int], observer: int) -> bool:
    """Whether `observer` gets through a broadcast from rank 0 that the `absent` ranks have not yet entered.

    They enter when it tells them that it did, or after 120 s. The broadcast has two segments of the pipeline, and is
    too long to be sent without being asked for.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    tensor = torch.ones(2 * 16 * 1024, dtype=torch.uint8)
    world.Barrier()
    told = False
    if world.rank in absent:
        deadline = time.monotonic() + 120.0
        while not told and time.monotonic() < deadline:
            told = world.Iprobe(source=observer, tag=77)
            time.sleep(0.001)
    engine.broadcast(tensor, 0, algorithm)
    if world.rank == observer:
        for rank in absent:
            world.send(None, rank, tag=77)
    elif world.rank in absent:
        world.recv(source=observer, tag=77)
    return all(told for rank, told in enumerate(world.allgather(told)) if rank in absent)


def test_a_broadcast_runs_the_algorithm_that_was_asked_for():
    """Told by who can finish before whom: along a chain only rank 1 waits for the root, in a tree rank 2 does, too."""
    from hvd_compress.engines.mpi import MpiEngine

    n = hvd.size()
    if n == 2:
        return  # all algorithms are one message then
    engine = MpiEngine()
    assert finishes_without(engine, "pipeline_16k", absent=set(range(2, n)), observer=0)
    assert finishes_without(engine, "binomial", absent={1}, observer=2)
    engine.close()


def test_a_setting_without_effect_is_not_offered(monkeypatch):
    from hvd_compress.engines import mpi, mpi_algorithms
    from hvd_compress.engines.mpi import MpiEngine

    doubling = mpi_algorithms.CONTROLS["recursive_doubling"]
    monkeypatch.setitem(mpi_algorithms.CONTROLS, "ring", doubling)
    monkeypatch.setattr(mpi, "_pools", {})  # with communicators that were made as always
    engine = MpiEngine()
    assert engine.capabilities.algorithms == ("tree", "recursive_doubling", "rabenseifner")
    assert "pipeline_16k" not in engine.capabilities.broadcasts, "it lives on the communicator of the ring"
    with pytest.raises(UnsupportedError, match=r"cannot force algorithm 'ring' .* it offers auto, tree, recursive"):
        engine.allreduce(torch.ones(3), "ring")
    engine.close()


def test_a_control_that_one_rank_lacks_is_offered_on_none(monkeypatch):
    from hvd_compress.engines import mpi, mpi_algorithms
    from hvd_compress.engines.mpi import MpiEngine

    if hvd.rank() == 0:
        monkeypatch.setitem(mpi_algorithms.CONTROLS, "tree", {"coll_tuned_no_such_variable": 1})
    monkeypatch.setattr(mpi, "_pools", {})  # with communicators that were made as always
    engine = MpiEngine()
    assert engine.capabilities.algorithms == ("ring", "recursive_doubling", "rabenseifner")
    engine.close()


def test_another_vendor_offers_only_auto(monkeypatch):
    from mpi4py import MPI

    from hvd_compress.engines import mpi_algorithms

    monkeypatch.setattr(MPI, "get_vendor", lambda: ("MPICH", (4, 2, 0)))
    assert mpi_algorithms.forcible_algorithms() == ()


def test_too_few_threads_say_what_to_do(monkeypatch):
    from mpi4py import MPI

    from hvd_compress.engines.mpi import MpiEngine

    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    with pytest.raises(UnsupportedError, match="do not set HOROVOD_MPI_THREADS_DISABLE"):
        MpiEngine()


class TestControlVariables:
    NAME = "coll_tuned_allreduce_algorithm"

    def test_values_come_back_after_the_block(self):
        from hvd_compress.engines import control_variables

        before = control_variables.read(self.NAME)
        with control_variables.temporarily({self.NAME: 6, "coll_tuned_use_dynamic_rules": 1}):
            assert control_variables.read(self.NAME) == 6
            assert control_variables.read("coll_tuned_use_dynamic_rules") == 1
        assert control_variables.read(self.NAME) == before

    def test_an_unknown_variable_is_a_lookup_error_and_leaves_the_others_alone(self):
        from hvd_compress.engines import control_variables

        before = control_variables.read(self.NAME)
        with (
            pytest.raises(LookupError, match="no_such_variable"),
            control_variables.temporarily({self.NAME: 6, "no_such_variable": 1}),
        ):
            pass
        assert control_variables.read(self.NAME) == before
