"""What runs an option: each path beside the calls that it really launches."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.collectives.groups import leaders, within_host
from hvd_compress.compressors import DGC, BlockQuantizer, Cast, Compressor, EFSign, OneBit, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Call, Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.espresso.groups import same_place
from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints, Option, by_name, options
from hvd_compress.papers.espresso.running import ENGINES, TABLE, Run, runnable
from hvd_compress.profiler.profiles import SystemProfile
from tests.papers.espresso.test_prices import ACROSS, WITHIN

TOPK, INT8 = TopK(0.01), BlockQuantizer(8)
COMPRESSORS: dict[str, Compressor] = {"topk": TOPK, "int8": INT8, "efsign": EFSign(), "onebit": OneBit(64)}
LINKS = {(0, 1): "within", (0, 2): "across", (0, 1, 2, 3): "all"}
LAYOUT = Layout.of(1000)
MADE_OF = {"reduce": ("reduce_scatter", "gather")}


def launched(compressor: Compressor, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the calls of rank 0 of four on two hosts in one step: verb and link."""
    seen: list[tuple[str, str]] = []
    note = Engine.note

    def spy(engine: Engine, call: Call) -> None:
        if engine.ranks[engine.rank] == 0:
            seen.append((call.verb, LINKS[tuple(engine.ranks)]))
        note(engine, call)

    def body(engine: InProcessEngine) -> None:
        for group in (within_host, leaders, same_place):
            group(engine)  # made once, and no part of a step
        if engine.rank == 0:
            seen.clear()
        residual = Residual(torch.zeros(LAYOUT.numel), torch.empty(LAYOUT.numel))
        state = BucketState(residual if compressor.error_feedback else None)
        gradient = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(engine.rank))
        work = Work(gradient, LAYOUT, 1, 0, 0.25, state, engine.rank, 1.0, 4, hosts=engine.hosts)
        exchange = collectives.build(compressor, path).exchange(work, engine.rank, 4)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()

    monkeypatch.setattr(Engine, "note", spy)
    run_ranks(4, body, hosts=(0, 0, 1, 1))
    return seen


def wanted(option: Option) -> list[tuple[str, str]]:
    tasks = [task for task in option.tasks if task.communicates]
    return [(verb, task.link) for task in tasks for verb in MADE_OF.get(task.verb, (task.verb,))]


def system(hosts: int, ranks_per_host: int) -> SystemProfile:
    return SystemProfile(hosts=hosts, ranks_per_host=ranks_per_host, within=WITHIN, across=ACROSS)


RUNS = {name: runnable(compressor, system(2, 2)) for name, compressor in COMPRESSORS.items()}
TREE = {option.path: option for option in options(Constraints(devices=("training",)))}
OWN = [(words, name) for words in TABLE for name in COMPRESSORS if RUNS[name][TREE[words]].path == TABLE[words]]


@pytest.mark.parametrize(("words", "name"), OWN)
def test_a_collective_of_its_own_launches_what_its_option_says(
    words: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[name][TREE[words]]
    assert launched(run.compressor, run.path, monkeypatch) == wanted(TREE[words])


@pytest.mark.parametrize("words", list(TREE)[::7])
def test_all_others_go_by_their_name(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS["int8"][TREE[words]]
    assert launched(run.compressor, run.path, monkeypatch) == wanted(TREE[words])


def test_each_row_of_the_table_is_used() -> None:
    assert {words for words, _ in OWN} == set(TABLE)


def test_all_options_of_one_device_run() -> None:
    for name, compressor in COMPRESSORS.items():
        assert [o for o in RUNS[name] if o.devices <= {"training"}] == list(TREE.values())
        assert {o.path for o in RUNS[name] if o.devices == {"host"}} == {p for p, o in TREE.items() if o.compressions}
        assert all(run.compressor == (compressor if o.compressions else Cast()) for o, run in RUNS[name].items())


def test_where_the_devices_of_options_go() -> None:
    found = RUNS["topk"]
    assert found[by_name("comp@training allgather*@all decomp@training")] == Run(TOPK, Path("allgather"), "auto")
    assert found[by_name("comp@host allgather*@all decomp@host")] == Run(TOPK, Path("allgather"), "cpu")
    assert found[UNCOMPRESSED] == Run(Cast(), Path("dense"), "auto")
    assert all(len(option.devices) < 2 for option in found)


def test_what_has_two_rounds_runs_no_option_that_compresses() -> None:
    assert not any(option.compressions for option in runnable(PowerSGD(2), system(2, 2)))


def test_what_keeps_a_state_runs_where_a_collective_of_its_own_carries_it() -> None:
    found = runnable(DGC(0.01), system(2, 2))
    assert {run.path.collective for option, run in found.items() if option.compressions} == {
        "allgather",
        "parameter-server",
    }


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 4), (4, 1)])
def test_one_host_or_one_rank_each_leaves_flat_options(hosts: int, ranks: int) -> None:
    found = runnable(TOPK, system(hosts, ranks))
    assert found
    assert not any(option.hierarchical for option in found)


def test_many_ranks_leave_collectives_of_their_own() -> None:
    few, many = (runnable(TOPK, system(hosts, 8)) for hosts in (16, 17))
    named = {option: run for option, run in few.items() if "@" not in run.path.collective}
    assert many == named
    assert len(few) > 100 > len(named) > 5


def test_engines_differ() -> None:
    by_engine = {name: {str(run.path) for run in runnable(INT8, system(2, 2), name).values()} for name in ENGINES}
    assert by_engine["mpi"] == by_engine["torch"] > by_engine["horovod"] >= {"dense", "allgather", "alltoall-allgather"}
    assert not any("@within" in path or "gather-" in path for path in by_engine["horovod"])
