"""The engines over MPI, Horovod and torch.distributed keep every promise of an engine, between real processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hvd_compress.torch as hvd
from hvd_compress.compressors import BlockQuantizer
from hvd_compress.cost.calibrate import Calibrator
from hvd_compress.cost.store import job_shape, load, save
from hvd_compress.engines import limits, select, torch_distributed
from hvd_compress.engines.base import ALGORITHMS, Engine
from hvd_compress.engines.horovod import HorovodEngine
from hvd_compress.engines.torch_distributed import TorchEngine
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.horovod.runtime_selection import RUNTIME
from hvd_compress.frontends.horovod.runtime_selection import hvd as runtime
from tests.exchanges import normal, step_on
from tests.parallel.training import ENGINES
from tests.unit.engines.promises import PROMISES

AMONG_HOSTS = "mpi among hosts"
HOROVOD = "Horovod" if RUNTIME == "horovod" else "runtime"


@pytest.fixture(scope="module")
def over_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine over torch.distributed, whose ranks meet in a file of rank 0."""
    meeting = hvd.broadcast_object(str(tmp_path_factory.mktemp("gloo") / "meeting"), root_rank=0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    yield TorchEngine()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def engines(over_torch: Engine) -> dict[str, Engine]:
    """Return an engine of each kind that this launch offers."""
    made: dict[str, Engine] = {"horovod": HorovodEngine(api=runtime), "torch": over_torch}
    if "mpi" in ENGINES:
        from hvd_compress.engines.mpi import MpiEngine

        class AmongHosts(MpiEngine):
            _sleeps = True

        made["mpi"], made[AMONG_HOSTS] = MpiEngine(), AmongHosts()
    return made


@pytest.fixture(params=[*ENGINES, "torch"])
def engine(request, engines) -> Engine:
    return engines[request.param]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", [*ENGINES, "torch", *([AMONG_HOSTS] if "mpi" in ENGINES else [])])
def test_promise(promise, name, engines):
    promise(engines[name])


@pytest.mark.skipif("mpi" not in ENGINES, reason="the job was not started by mpirun")
def test_promises_among_hosts_by_many_messages(engines, monkeypatch):
    """A tensor is cut into messages that leave at once; of 60 bytes here, and 5 of them at most."""
    from hvd_compress.engines import mpi_hosts

    monkeypatch.setattr(mpi_hosts, "MESSAGE_BYTES", 60)
    monkeypatch.setattr(mpi_hosts, "MOST_MESSAGES", 5)
    for promise in PROMISES:
        promise(engines[AMONG_HOSTS])


@pytest.mark.parametrize("path", ["allgather", "alltoall-allgather", "reduce-scatter"])
@pytest.mark.parametrize("name", [*ENGINES, "torch", *([AMONG_HOSTS] if "mpi" in ENGINES else [])])
def test_coded_ones_lose_what_others_do_in_fewer_bytes(path, name, engines):
    """By every transport: where receivers have memory for the most, and where lengths go ahead."""
    engine = engines[name]
    engine.take_calls()
    plain, coded = (step_on(engine, BlockQuantizer(3, coded=flag), path, normal(50_000)) for flag in (False, True))
    assert torch.equal(plain.result, coded.result)
    assert torch.equal(plain.pending, coded.pending)
    assert coded.sent_bytes < 0.85 * plain.sent_bytes


def test_ranks_are_horovods(engine):
    assert (engine.rank, engine.world_size) == (hvd.rank(), hvd.size())


def test_two_engines_of_a_kind_do_not_mix(engines):
    second = HorovodEngine(api=runtime)
    first = engines["horovod"]
    for engine in (first, second, first):
        tensor = torch.ones(5)
        engine.allreduce(tensor)
        assert torch.equal(tensor, torch.full((5,), float(hvd.size())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_allreduces_over_gloo_by_owners_and_by_its_ring_agree(over_torch, dtype, monkeypatch):
    """Small whole numbers, so that the order of sums does not matter; a length that no number of ranks divides."""
    sums = []
    for most in (0, 1 << 20):
        monkeypatch.setattr(torch_distributed, "OWNERS_BYTES", most)
        for numel in (0, 1, 1009):
            tensor = (torch.arange(numel) % 7 + over_torch.rank).to(dtype)
            over_torch.allreduce(tensor)
            sums.append(tensor)
    for by_ring, by_owners in zip(sums[:3], sums[3:], strict=True):
        assert torch.equal(by_ring, by_owners)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)  # torch counts in 64 bits
def test_more_elements_than_a_call_can_count(engine, monkeypatch):
    """Sums and broadcasts go in parts; what cannot be split says so, on every rank."""
    monkeypatch.setattr(limits, "MAX_COUNT", 7)
    tensor = torch.arange(30.0)
    engine.allreduce(tensor)
    assert torch.equal(tensor, torch.arange(30.0) * engine.world_size)
    tensor = torch.arange(30.0) + engine.rank
    engine.broadcast(tensor, 0)
    assert torch.equal(tensor, torch.arange(30.0))
    for verb in (engine.allgather, engine.reduce_scatter):
        with pytest.raises(UnsupportedError, match="more than the transport can count"):
            verb(tensor)
    with pytest.raises(UnsupportedError, match="more than the transport can count"):
        engine.alltoall([tensor] * engine.world_size)


def test_all_ranks_hold_the_same_curves(engine):
    """Measured here, kept by rank 0, and read back by it alone."""
    verbs = ("broadcast", "allreduce", "allgather")
    keys = [(verb, name) for verb in verbs for name in ("auto", *engine.capabilities.forcible(verb))]
    curves = Calibrator(engine, keys, 0.0).run()
    assert list(curves.by_key) == keys
    mine = torch.frombuffer(bytearray(json.dumps(curves.to_json()).encode()), dtype=torch.uint8)
    assert len({bytes(other.numpy()) for other in engine.allgather(mine)}) == 1
    shape = job_shape(engine)
    with tempfile.TemporaryDirectory() as folder:
        if engine.rank == 0:
            save(curves, shape, Path(folder))
        assert load(engine, shape, keys, Path(folder)) == [curves]
        engine.allreduce(torch.zeros(1))  # nobody removes the folder before all are done


class TestProcessSets:
    """An engine over the first and the last rank."""

    @pytest.fixture
    def members(self):
        members = hvd.add_process_set([0, hvd.size() - 1]) if hvd.size() > 2 else hvd.add_process_set([0])
        yield members
        hvd.remove_process_set(members)

    def test_members_communicate_and_others_are_refused(self, members):
        for kind in ENGINES:
            if not members.included():
                with pytest.raises(ConfigError, match="process set"):
                    select.choose_engine(kind, members, api=runtime)
                continue
            engine = select.choose_engine(kind, members, api=runtime)
            assert (engine.rank, engine.world_size) == (members.rank(), members.size())
            for promise in PROMISES:
                promise(engine)

    def test_a_group_by_ranks(self, members):
        if "mpi" not in ENGINES:
            pytest.skip("needs MPI")
        from hvd_compress.engines.mpi import MpiEngine

        if not members.included():
            with pytest.raises(ConfigError, match="leave it out"):
                MpiEngine(ranks=members.ranks)
            return
        engine = MpiEngine(ranks=members.ranks)
        assert (engine.rank, engine.world_size) == (members.ranks.index(hvd.rank()), len(members.ranks))
        assert engine.capabilities.algorithms == ALGORITHMS
        engine.close()


class TestChoice:
    def test_auto_follows_the_launcher(self):
        assert select.choose_engine("auto", api=runtime).name == ("MPI" if "mpi" in ENGINES else HOROVOD)

    def test_horovod_by_name(self):
        assert select.choose_engine("horovod", api=runtime).name == HOROVOD

    def test_mpi_by_name(self):
        if "mpi" in ENGINES:
            assert select.choose_engine("mpi", api=runtime).name == "MPI"
            return
        with pytest.raises(UnsupportedError, match=r"rank 0: not launched by mpirun; rank 1: not launched by mpirun"):
            select.choose_engine("mpi", api=runtime)

    def test_an_unknown_name_is_an_error_everywhere(self):
        name = "pigeon" if hvd.rank() == 0 else "auto"
        with pytest.raises(ConfigError, match=r"'pigeon' on ranks \[0\], 'auto' on ranks \[1"):
            select.choose_engine(name, api=runtime)
        with pytest.raises(ConfigError, match="unknown engine 'pigeon'; known are auto, mpi, horovod, torch"):
            select.choose_engine("pigeon", api=runtime)

    def test_different_names_are_an_error_everywhere(self):
        name = "mpi" if hvd.rank() == hvd.size() - 1 else "horovod"
        with pytest.raises(ConfigError, match=rf"'mpi' on ranks \[{hvd.size() - 1}\]"):
            select.choose_engine(name, api=runtime)

    def test_one_rank_without_mpi_decides_for_all(self, monkeypatch):
        last = hvd.size() - 1
        mpi, *others = select.SPECS
        lacking = replace(mpi, obstacle=lambda engine: "no MPI here" if hvd.rank() == last else None)
        monkeypatch.setattr(select, "SPECS", [lacking, *others])
        assert select.choose_engine("auto", api=runtime).name == ("Horovod" if RUNTIME == "horovod" else "torch")
        with pytest.raises(UnsupportedError, match=rf"\(rank {last}: no MPI here\)"):
            select.choose_engine("mpi", api=runtime)

    def test_torch_by_name(self, over_torch):
        assert select.choose_engine("torch", api=runtime).name == "torch"

    def test_an_engine_for_distributed_data_parallel(self, over_torch):
        """Which has a process group, and may ask for any engine that counts ranks as that does."""
        for name in ("auto", "torch"):
            assert select.choose_torch_engine(name).name == "torch"
        if RUNTIME == "horovod":
            assert select.choose_torch_engine("horovod").name == "Horovod"
        if "mpi" in ENGINES:
            assert select.choose_torch_engine("mpi").name == "MPI"
        else:
            with pytest.raises(UnsupportedError, match="rank 0: not launched by mpirun"):
                select.choose_torch_engine("mpi")

    def test_of_a_part_of_the_ranks(self, over_torch):
        """A process group of two ranks, and of the others, has no process set."""
        groups = [list(range(min(2, hvd.size()))), list(range(2, hvd.size()))]
        mine = next(dist.new_group(ranks, use_local_synchronization=True) for ranks in groups if hvd.rank() in ranks)
        engine = select.choose_torch_engine(group=mine)
        assert (engine.rank, engine.world_size) == (dist.get_rank(mine), dist.get_world_size(mine))
        if "mpi" in ENGINES:
            over_mpi = select.choose_torch_engine("mpi", mine)
            assert list(over_mpi.ranks) == list(engine.ranks)
            over_mpi.close()
        if len(groups[1]):
            with pytest.raises(UnsupportedError, match="Horovod has no process set of this group"):
                select.choose_torch_engine("horovod", mine)
