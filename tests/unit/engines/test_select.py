"""Ranks agree on an engine, or refuse alike; and where an engine takes a GPU's memory alone, who asks for the other."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer
from hvd_compress.cost.store import job_shape
from hvd_compress.engines import select
from hvd_compress.engines.base import ENGINES, Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.engines.select import EngineSpec, agree_on_engine
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.policies.open_paths import unforced
from hvd_compress.policies.prices import measure
from hvd_compress.services.agreement import gathered

LAYOUT = Layout.of(1000)


def spec(name: str, obstacle: Callable[[Engine], str | None] = lambda engine: None) -> EngineSpec:
    """Return one that is made by giving the engine that exists its name."""

    def make(engine: Engine) -> Engine:
        engine.name = name
        return engine

    return EngineSpec(name, obstacle, make)


def chosen(specs: list[EngineSpec], *names: str, preferred: tuple[str, ...] = ("fast", "slow")) -> list[str]:
    """Return the name of each rank's engine; rank r asks for the r-th name."""
    return run_ranks(len(names), lambda engine: agree_on_engine(names[engine.rank], engine, preferred, specs).name)


def last_rank_cannot(engine: Engine) -> str | None:
    return "no wires" if engine.rank == engine.world_size - 1 else None


def test_names_are_those_of_the_list() -> None:
    assert ("auto", *(spec.name for spec in select.SPECS)) == ENGINES


def test_auto_is_the_first_that_every_rank_can_use() -> None:
    assert chosen([spec("slow"), spec("fast"), spec("other")], "auto", "auto", "auto") == ["fast"] * 3
    assert chosen([spec("slow"), spec("fast", last_rank_cannot)], "auto", "auto", "auto") == ["slow"] * 3


def test_by_name() -> None:
    assert chosen([spec("slow"), spec("fast")], "slow", "slow") == ["slow"] * 2
    assert chosen([spec("slow"), spec("other")], "other", "other") == ["other"] * 2, "whatever is preferred"


def test_who_is_not_in_question_is_not_asked() -> None:
    """To look for MPI starts it."""

    def never(engine: Engine) -> str | None:
        raise AssertionError

    assert chosen([spec("slow"), spec("fast", never)], "slow", "slow") == ["slow"] * 2


def all_refuse(kind: type[Exception], words: str, specs: list[EngineSpec], *names: str) -> None:
    def body(engine: Engine) -> None:
        with pytest.raises(kind, match=words):
            agree_on_engine(names[engine.rank], engine, ("fast", "slow"), specs)

    run_ranks(len(names), body)


def test_every_rank_refuses_alike() -> None:
    specs = [spec("slow", last_rank_cannot), spec("fast", last_rank_cannot)]
    all_refuse(UnsupportedError, r"engine 'fast' cannot be used \(rank 1: no wires\)", specs, "fast", "fast")
    words = r"engine 'auto' cannot be used \(fast on rank 1: no wires; slow on rank 1: no wires\)"
    all_refuse(UnsupportedError, words, specs, "auto", "auto")
    all_refuse(ConfigError, "unknown engine 'pigeon'; known are auto, slow, fast", specs, "pigeon", "pigeon")
    words = r"same engine, but they asked for 'auto' on ranks \[0, 2\], 'pigeon' on ranks \[1\]"
    all_refuse(ConfigError, words, specs, "auto", "pigeon", "auto")


def test_obstacles_to_the_engines_of_this_package() -> None:
    """In a process that no launcher started, beside an engine of two ranks."""
    mpi, horovod, over_torch = select.SPECS
    engine = InProcessWorld(2).engine(1)
    assert mpi.obstacle(engine) == "not launched by mpirun"
    is_there = find_spec("horovod") is not None
    assert horovod.obstacle(engine).startswith("hvd.init() has not been called" if is_there else "Horovod is missing")
    assert over_torch.obstacle(engine) == "torch.distributed.init_process_group() has not been called"
    engine.job_size = 3
    assert horovod.obstacle(engine).startswith(
        "Horovod has no process set of this group" if is_there else "Horovod is missing"
    )


class OfADevice(InProcessEngine):
    """Takes tensors of the device meta alone, which have no memory; another engine is its control."""

    def __init__(self, engine: InProcessEngine, control: InProcessEngine) -> None:
        super().__init__(engine.world, engine.rank)
        self._control = control
        self._adopt(control)
        can = self.capabilities
        self.capabilities = type(can)(
            can.verbs, can.algorithms, can.sum_dtypes, can.broadcasts, can.allgathers, ("meta",)
        )

    @property
    def control(self) -> Engine:
        return self._control


def test_what_ranks_tell_each_other_goes_over_the_control_and_what_is_measured_over_the_engine() -> None:
    worlds = InProcessWorld(2), InProcessWorld(2)

    def body(rank_of: InProcessEngine) -> None:
        engine = OfADevice(*(world.engine(rank_of.rank) for world in worlds))
        with pytest.raises(ConfigError, match=r"on meta, not .* on cpu"):
            engine.allreduce(torch.ones(1))
        assert engine.allgather_json(engine.rank) == [0, 1]
        assert job_shape(engine).world_size == 2
        assert len(engine.locate()) == 2
        assert gathered([float(engine.rank)], engine) == [[0.0], [1.0]]
        before = engine.sent_bytes
        ways = [[each] for each in unforced(BlockQuantizer(4), LAYOUT, engine.capabilities)]
        measure(engine, [(ways, LAYOUT)], 0.0)
        assert engine.sent_bytes > before
        assert engine.take_calls() == []

    run_ranks(2, body)
