"""What engines have had is lent again when all ranks have it back, and never where a message may be on its way."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.engines.pool import Pool
from hvd_compress.errors import ConfigError, UsageError


class Rank:
    """A rank with a pool, whose transports are words. It meets the others by an engine."""

    def __init__(self, meeting: InProcessEngine) -> None:
        self.meeting, self.pool = meeting, Pool[str]()
        self.obstacle = ""

    def lend(self, thorough: bool = False) -> tuple[Engine, str]:
        """Return an engine, and what it has; all ranks get the same."""
        engine = InProcessEngine(InProcessWorld(1), 0)
        make = partial("transport {}".format, self.pool.made)
        held = self.pool.lend(
            engine, self.meeting.allgather_json, make, obstacle=lambda: self.obstacle, thorough=thorough
        )
        assert set(self.meeting.allgather_json(held)) == {held}, "ranks would talk past each other"
        return engine, held


def test_ranks_that_have_other_ones_back() -> None:
    def body(meeting: InProcessEngine) -> None:
        rank = Rank(meeting)
        (first, _), (second, _), (third, _) = rank.lend(), rank.lend(), rank.lend()
        for engine in (first, second) if meeting.rank else (second, third):
            engine.close()
        again, held = rank.lend()
        assert held == "transport 1", "what both have"
        fourth, held = rank.lend()
        assert held == "transport 3", "none has what the other one has"
        del first, third, engine
        again.close()
        assert [rank.lend()[1] for _ in range(2)] == ["transport 0", "transport 0"], "given back when it is dropped"
        fourth.close()
        assert rank.pool.made == 4

    run_ranks(2, body)


def test_what_a_message_may_be_on_its_way_in_is_not_lent_again() -> None:
    def body(meeting: InProcessEngine) -> None:
        rank = Rank(meeting)
        for number, end in enumerate((spoiled, within_a_collective, after_one_more)):
            engine, held = rank.lend()
            assert held == f"transport {number}"
            engine.allreduce(torch.ones(3))
            if meeting.rank == 1:
                end(engine)
            engine.close()
        assert rank.lend()[1] == "transport 3"

    run_ranks(2, body)


def spoiled(engine: Engine) -> None:
    engine._spoil()


def within_a_collective(engine: Engine) -> None:
    with pytest.raises(ValueError, match="bad luck"), engine._timed("allreduce", "auto", 0, 0):
        raise ValueError("bad luck")


def after_one_more(engine: Engine) -> None:
    engine.allreduce(torch.ones(3))


def test_how_often_it_was_used_counts_from_the_first_engine_on() -> None:
    def body(meeting: InProcessEngine) -> None:
        rank = Rank(meeting)
        for calls in (1, 2, 0):
            engine, held = rank.lend()
            assert held == "transport 0"
            for _ in range(calls):
                engine.allreduce(torch.ones(3))
            engine.close()

    run_ranks(2, body)


def test_garbage_is_collected_before_another_one_is_made() -> None:
    def body(meeting: InProcessEngine) -> None:
        rank = Rank(meeting)
        engine, _ = rank.lend()
        engine.itself = engine  # type: ignore[attr-defined]
        del engine
        assert rank.lend(thorough=True)[1] == "transport 0"

    gc.disable()
    try:
        run_ranks(1, body)
    finally:
        gc.enable()


def test_an_obstacle_on_one_rank_is_an_error_of_all_where_one_must_be_made() -> None:
    def body(meeting: InProcessEngine) -> None:
        rank = Rank(meeting)
        engine, _ = rank.lend()
        engine.close()
        rank.obstacle = "too many files" if meeting.rank else ""
        engine, _ = rank.lend()
        with pytest.raises(ConfigError, match="too many files"):
            rank.lend()

    run_ranks(2, body)


def test_a_closed_engine_runs_nothing() -> None:
    engine = InProcessEngine(InProcessWorld(1), 0)
    Pool().lend(engine, lambda offer: [offer], object)
    engine.close()
    with pytest.raises(UsageError, match="is closed"):
        engine.allreduce(torch.ones(3))
