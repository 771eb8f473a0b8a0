"""The engine over torch.distributed: its errors, its groups beside those of the program, and its store.

tests/parallel/test_engines.py holds it to the promises of every engine.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hvd_compress.engines import process_groups, torch_distributed
from hvd_compress.engines.select import choose_torch_arrivals, choose_torch_engine
from hvd_compress.engines.store_arrivals import StoreArrivals
from hvd_compress.engines.torch_distributed import TorchEngine, backend_of
from hvd_compress.errors import ConfigError, UnsupportedError
from tests.unit.engines.promises import PROMISES

RANKS = 3


@pytest.fixture
def alone() -> Iterator[None]:
    """A job with one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    # A thread of gloo that still lets go of a tensor needs Python's lock, which torch 2.4 holds while it waits for it.
    time.sleep(0.05)
    dist.destroy_process_group()


@pytest.mark.parametrize("make", [TorchEngine, choose_torch_engine, choose_torch_arrivals])
def test_torch_distributed_must_be_initialised(make) -> None:
    with pytest.raises(ConfigError, match=r"call torch.distributed.init_process_group\(\) before"):
        make()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise_of_one_rank(promise, alone: None) -> None:
    promise(TorchEngine())


def test_the_library_names_backend_and_torch(alone: None) -> None:
    assert TorchEngine().library == f"sockets and Gloo of torch {torch.__version__}"


def test_a_rank_outside_of_the_group_is_an_error(alone: None) -> None:
    with pytest.raises(ConfigError, match="rank 0 is not in this process group"):
        TorchEngine(dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(ConfigError, match=r"rank 0 is not in the process group of ranks \[1, 2\]"):
        TorchEngine(ranks=[1, 2])


def test_all_groups_are_forgotten_when_the_program_ends_them(alone: None) -> None:
    engine = TorchEngine()
    group = weakref.ref(engine._group)
    engine.close()
    again = TorchEngine()
    assert again._group is group()
    again.close()
    del again, engine
    dist.destroy_process_group()
    assert group() is None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert TorchEngine().allgather_json("told") == ["told"]


def test_an_unknown_backend_is_an_error_that_names_the_known_ones(alone: None, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown backend 'pigeon'; known to torch.distributed are gloo, nccl, mpi"):
        TorchEngine(backend="pigeon")
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "ucc")
    with pytest.raises(ConfigError, match="unknown backend 'ucc'"):
        TorchEngine()
    with pytest.raises(UnsupportedError, match=r"rank 0: it knows the backends gloo, nccl, mpi, and .* has 'ucc'"):
        choose_torch_engine()


def test_nccl_without_a_gpu_says_to_use_gloo(alone: None, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    why = "rank 0: backend 'nccl' needs a GPU and torch sees none: use backend='gloo'"
    with pytest.raises(UnsupportedError, match=why):
        TorchEngine()
    with pytest.raises(UnsupportedError, match=f"engine 'auto' cannot be used .torch on {why}"):
        choose_torch_engine()
    with pytest.raises(UnsupportedError, match=f"engine 'torch' cannot be used .{why}"):
        choose_torch_engine("torch")
    assert TorchEngine(backend="gloo").backend == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UnsupportedError, match="built without NCCL: use backend='gloo'"):
        TorchEngine()


@pytest.mark.skipif(dist.is_mpi_available(), reason="this torch has MPI")
def test_mpi_in_a_torch_without_it(alone: None) -> None:
    with pytest.raises(UnsupportedError, match="built without MPI"):
        TorchEngine(backend="mpi")


def test_of_several_backends_a_gpu_decides(alone: None, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group=None: "cpu:gloo,cuda:nccl")
    for named in ("cpu:gloo,cuda:nccl", "undefined"):
        monkeypatch.setattr(dist, "get_backend", lambda group=None, named=named: named)
        for gpu, backend in ((False, "gloo"), (True, "nccl")):
            monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
            assert backend_of(None) == backend


@pytest.fixture
def nccl(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's backend is NCCL, and gloo in its place."""
    plain = dist.new_group
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
    monkeypatch.setattr(torch_distributed, "obstacle_to", lambda backend: None)
    monkeypatch.setattr(torch_distributed, "_version", lambda backend: backend)
    monkeypatch.setattr(torch_distributed, "_gpu", lambda device, group: torch.device("cuda", 0))
    monkeypatch.setattr(dist, "new_group", lambda ranks, limit, backend, **options: plain(ranks, limit, **options))


@pytest.mark.parametrize("make", [TorchEngine, choose_torch_engine])
def test_nccl_takes_a_gpus_memory_and_its_control_that_of_the_host(nccl: None, make) -> None:
    engine = make()
    assert engine.capabilities.devices == ("cuda",)
    assert engine.device == torch.device("cuda", 0)
    assert torch.bfloat16 in engine.capabilities.sum_dtypes
    assert (engine.control.backend, engine.control.capabilities.devices) == ("gloo", ("cpu",))
    assert engine.allgather_json("told") == ["told"]
    assert engine.take_calls() == []
    with pytest.raises(ConfigError, match=r"on cuda, not .* on cpu"):
        engine.allreduce(torch.ones(3))
    engine.control.allreduce(torch.ones(3))
    assert [call.tensor_bytes for call in engine.take_calls()] == [12]
    assert engine.in_flight == 1
    with pytest.raises(UnsupportedError, match="unset HVD_COMPRESS_IN_FLIGHT"):
        engine.twin()
    part = engine.split(0)
    assert part.control not in (part, engine.control)
    part.control.allreduce(torch.ones(2))
    assert [call.tensor_bytes for call in engine.take_calls()] == [8]
    engine.close()


def test_ranks_tell_where_they_wait() -> None:
    """Each would make its own in a process of its own, where groups are counted."""
    store, made = dist.HashStore(), []
    for own in (0, 2, 5):
        arrivals = StoreArrivals(store, [0, 2, 5], own)
        arrivals.group = 7
        made.append(arrivals)
    first, second, third = made
    assert first.missing(1) == (2, 5), "ranks have their numbers in the whole job"
    second.announce(1)
    assert (first.missing(1), third.missing(1)) == ((5,), (0,))
    third.announce(2)
    assert first.missing(1) == ()
    assert first.missing(2) == (2,)
    second.announce(2)
    assert first.missing(2) == ()
    first.group = 8
    assert first.missing(1) == (2, 5), "groups do not hear each other"


def test_processes(tmp_path: Path) -> None:
    """Ranks as processes, which meet at a TCPStore."""
    store = dist.TCPStore("127.0.0.1", 0, RANKS, is_master=True, wait_for_workers=False)
    mp.spawn(rank_of_a_job, (store.port,), nprocs=RANKS)


def rank_of_a_job(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=None, store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=RANKS
    )
    arrivals_do_not_wait_for_who_is_missing(rank)
    a_group_of_its_own_does_not_mix_with_the_programs()
    groups_of_some_ranks_do_not_keep_later_ones_from_being_made(rank)
    a_part_of_the_ranks(rank)
    groups_that_are_used_again_on_some_ranks_count_as_those_that_others_make(rank)
    with pytest.MonkeyPatch.context() as patch:
        where_torch_counts_groups_of_a_rank_alone_those_of_a_part_are_made_anew(rank, patch)
    dist.barrier()
    dist.destroy_process_group()


def arrivals_do_not_wait_for_who_is_missing(rank: int) -> None:
    """Also while another thread of this rank waits in the store for what never comes."""
    store = dist.distributed_c10d._get_default_store()
    thread = threading.Thread(target=lambda: store.get(f"last {rank}"), daemon=True)
    if hasattr(store, "clone"):  # else they share a connection
        thread.start()
    arrivals = choose_torch_arrivals()
    arrivals.open()
    others = tuple(other for other in range(RANKS) if other != rank)
    assert arrivals.missing(1) == others
    dist.barrier()
    if rank:
        arrivals.announce(3)
    dist.barrier()
    assert arrivals.missing(3) == (() if rank == 0 else (0,))
    assert arrivals.missing(4) == others
    second = choose_torch_arrivals()
    second.open()
    assert second.missing(1) == others
    arrivals._store.underlying_store.set(f"last {rank}", "come")
    if thread.ident is not None:
        thread.join()


def a_group_of_its_own_does_not_mix_with_the_programs() -> None:
    """DistributedDataParallel launches its collectives from another thread than the pipeline does."""
    engine = choose_torch_engine()
    assert (engine.rank, engine.world_size, engine.job_size) == (dist.get_rank(), RANKS, RANKS)

    def sums() -> None:
        for number in range(50):
            tensor = torch.full((100,), float(number))
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full((100,), float(number * RANKS)))

    failed: list[BaseException] = []

    def watched() -> None:
        try:
            sums()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=watched)
    thread.start()
    for number in range(50):
        tensor = torch.full((7,), float(-number), dtype=torch.float64)
        engine.allreduce(tensor)
        assert torch.equal(tensor, torch.full((7,), float(-number * RANKS), dtype=torch.float64))
    thread.join()
    assert not failed, failed
    engine.close()


def groups_of_some_ranks_do_not_keep_later_ones_from_being_made(rank: int) -> None:
    """torch counts groups in their names, and ranks that made fewer would look for others under a wrong one."""
    engine = TorchEngine()
    for color in (None if rank else 0, 0 if rank == 1 else None):
        engine.split(color)
    for group in (dist.new_group(), dist.new_group(use_local_synchronization=True)):
        dist.barrier(group)
    again = TorchEngine()
    assert again.allgather_json(rank) == list(range(RANKS))


def groups_that_are_used_again_on_some_ranks_count_as_those_that_others_make(rank: int) -> None:
    """Ranks 0 and 1 have a group of theirs back, and rank 2 makes one meanwhile; a later one is of all."""
    engine = TorchEngine()
    if rank < 2:
        first = engine.split(0)
        group = first._group
        first.close()
        assert engine.split(0)._group is group
    else:
        kept = [engine.split(1), engine.split(1)]
        assert kept[0]._group is not kept[1]._group
    for made in (TorchEngine(timeout_s=50.0), TorchEngine(timeout_s=70.0)):  # of a limit of their own: new ones
        assert made.allgather_json(rank) == list(range(RANKS))
    others = made._group
    made.close()
    assert TorchEngine(timeout_s=50.0)._group is not others
    assert TorchEngine(timeout_s=70.0)._group is others
    store = dist.distributed_c10d._get_default_store()
    keys = [f"{prefix}/{turn}/{rank}" for prefix in _prefixes() for turn in range(20)]
    assert sum(store.check([key]) for key in keys) == len(list(_prefixes())), "the last turn's alone"


def where_torch_counts_groups_of_a_rank_alone_those_of_a_part_are_made_anew(
    rank: int, patch: pytest.MonkeyPatch
) -> None:
    """As releases before 2.15 name them."""
    world = dist.distributed_c10d._world
    before = len(world.pg_names)  # another one on each rank by now

    def hashed(ranks: Sequence[int]) -> str:
        return hashlib.sha1(f"old {list(ranks)} {len(world.pg_names) - before}".encode()).hexdigest()

    def name(ranks: Sequence[int], use_hashed_name: bool) -> str:
        assert use_hashed_name
        return hashed(ranks)

    patch.setattr(dist.distributed_c10d, "_hash_ranks_to_str", hashed)
    patch.setattr(dist.distributed_c10d, "_process_group_name", name)
    count, whole = world.group_count, TorchEngine(timeout_s=80.0)
    if rank < 2:
        first = whole.split(0)
        group = first._group
        first.close()
        kept = [whole.split(0)]
        assert kept[0]._group is not group
    else:
        kept = [whole.split(1), whole.split(1)]
    again = TorchEngine(timeout_s=90.0)
    assert again.allgather_json(rank) == list(range(RANKS))
    others = again._group
    again.close()
    assert TorchEngine(timeout_s=90.0)._group is others, "all ranks have that back"
    assert world.group_count == count


def _prefixes() -> Iterator[str]:
    world = dist.group.WORLD
    assert world is not None
    for groups in process_groups._of_job[world].values():
        yield groups._prefix


def a_part_of_the_ranks(rank: int) -> None:
    """Over a group of the program. Every rank is in one group."""
    ranks = [0, 2] if rank != 1 else [1]
    group = dist.new_group(ranks, use_local_synchronization=True)
    for engine in (TorchEngine(group), choose_torch_engine(group=group)):
        assert (list(engine.ranks), engine.rank, engine.job_size) == (ranks, ranks.index(rank), RANKS)
        tensor = torch.full((4,), float(rank))
        engine.broadcast(tensor, engine.world_size - 1)
        assert torch.equal(tensor, torch.full((4,), float(ranks[-1])))
