"""What runs an option: each row of the table beside the collectives that its scheme really launches."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import schemes
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Cast, Compressor, EFSign, OneBit, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Call, Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.states import BucketState, Residual
from hvd_compress.planner.options import UNCOMPRESSED, by_name
from hvd_compress.planner.prices import Prices
from hvd_compress.planner.profiles import SystemProfile
from hvd_compress.planner.running import ENGINES, MERGED, TABLE, Run, as_run, communication, on, runnable
from hvd_compress.schemes import Work
from hvd_compress.schemes.groups import leaders, same_place, within_host
from tests.unit.planner.test_prices import ACROSS, BOTH, BYTES, NUMEL, SYSTEM, WITHIN, ns

TOPK, INT8 = TopK(0.01), BlockQuantizer(8)
COMPRESSORS: dict[str, Compressor] = {"topk": TOPK, "int8": INT8, "efsign": EFSign(), "onebit": OneBit(64)}
HOSTS = (0, 0, 1, 1)
LINKS = {(0, 1): "within", (0, 2): "across", (0, 1, 2, 3): "all"}
LAYOUT = Layout.of(1000)


def launched(compressor: Compressor, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the collectives of the leader of host 0 in one step: verb and link."""
    seen: list[tuple[str, str]] = []
    note = Engine.note

    def spy(engine: Engine, call: Call) -> None:
        if engine.ranks[engine.rank] == 0:
            done = ((call.verb, LINKS[tuple(engine.ranks)]),)
            seen.extend(MERGED.get((call.verb, call.algorithm), done))
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
        exchange = schemes.build(compressor, path).exchange(work, engine.rank, 4)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()

    monkeypatch.setattr(Engine, "note", spy)
    run_ranks(4, body, hosts=HOSTS)
    return seen


def system(hosts: int, ranks_per_host: int) -> SystemProfile:
    return SystemProfile(hosts=hosts, ranks_per_host=ranks_per_host, within=WITHIN, across=ACROSS)


RUNS = {name: runnable(compressor, system(2, 2)) for name, compressor in COMPRESSORS.items()}
ROWS = [(str(option), name) for name, runs in RUNS.items() for option in runs if option.devices <= {"training"}]


@pytest.mark.parametrize(("option", "name"), ROWS)
def test_a_scheme_launches_what_its_option_says(option: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS[name][by_name(option)]
    assert launched(run.compressor, run.path, monkeypatch) == communication(by_name(option), 2, 2)


def test_every_row_of_the_table_is_run_by_some_compressor_somewhere() -> None:
    cases = [runnable(c, system(h, 2)) for c in COMPRESSORS.values() for h in (2, 3, 64)]
    reached = {str(option) for found in cases for option in found}
    assert all(on(words, "training") in reached for words in TABLE)


def test_where_the_devices_of_options_go() -> None:
    found = RUNS["topk"]
    assert found[by_name("comp@training allgather*@all decomp@training")] == Run(TOPK, Path("allgather"), "auto")
    assert found[by_name("comp@host allgather*@all decomp@host")] == Run(TOPK, Path("allgather"), "cpu")
    assert found[UNCOMPRESSED] == Run(Cast(), Path("dense"), "auto")
    assert all(len(option.devices) < 2 for option in found)


def test_top_k_goes_by_star_among_three_leaders_which_is_no_option() -> None:
    assert {run.path.scheme for run in runnable(TOPK, system(3, 2)).values() if run.compressor == TOPK} == {
        "allgather",
        "parameter-server",
        "hitopk",
        "hierarchical-within",
    }


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 4), (4, 1)])
def test_one_host_or_one_rank_each_leaves_flat_options(hosts: int, ranks: int) -> None:
    assert not any(option.hierarchical for option in runnable(TOPK, system(hosts, ranks)))


def test_what_has_two_rounds_runs_no_option() -> None:
    assert not any(option.compressions for option in runnable(PowerSGD(2), system(2, 2)))


def test_engines_differ() -> None:
    by_engine = {name: {str(run.path) for run in runnable(INT8, system(2, 2), name).values()} for name in ENGINES}
    assert by_engine["mpi"] - by_engine["torch"] == {"dense-ring"}
    assert by_engine["horovod"] == {"dense", "allgather", "alltoall-allgather"}


def test_an_allreduce_in_the_place_of_a_reduce_is_priced() -> None:
    option = by_name("reduce@within allreduce@across broadcast@within")
    prices = Prices(SYSTEM, BOTH)
    found = [prices.ns(step, NUMEL) for step in as_run(option, SYSTEM.hosts, SYSTEM.ranks_per_host)]
    tree = ns(str(option))
    assert found[1:] == tree[1:]
    # four ranks, recursive doubling: 2 messages of everything; Rabenseifner: 4, and 2 * 3/4 of it
    assert found[0] == round(min(2_000 + 2 * BYTES, 4_000 + 1.5 * BYTES))
