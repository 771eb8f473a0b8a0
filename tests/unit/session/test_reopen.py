"""Ranks leave, and those that stay go on: what they remember stays, and an unfinished step does not count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, ReplicaError, UnsupportedError, UsageError
from hvd_compress.request.request import Request
from hvd_compress.session import checkpoint
from hvd_compress.session.report import StepReport
from hvd_compress.session.session import Session
from hvd_compress.settings import Settings

SHAPES = {"a": (40, 30), "b": (1000,), "c": (24, 20)}
SLOTS = {name: Slot(shape, torch.float32) for name, shape in SHAPES.items()}
DEVICES = {"cpu": torch.device("cpu")}
LAYOUTS = [Layout((name,), (shape,)) for name, shape in SHAPES.items()]
LEAVES, LAST = 3, 5
"""The step in which a rank leaves, and the last one."""


def opened(connect: Callable[[], Engine], request: Request, settings: Settings | None = None) -> Session:
    session = Session(SLOTS, request, settings or Settings(600, 60.0), connect)
    session.open(list(SHAPES))
    session.set_buckets(LAYOUTS, DEVICES)
    return session


def drawn(rank: int, step: int) -> list[torch.Tensor]:
    """Whole numbers, so that sums of gradients and residuals are exact."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randint(-99, 99, (layout.numel,), generator=draw).float() for layout in LAYOUTS]


def take(session: Session, rank: int, step: int, leave: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """Take a step; `leave` is called before its last bucket is handed over."""
    session.begin_step()
    flats = drawn(rank, step)
    for number, flat in enumerate(flats):
        if number == len(flats) - 1:
            leave()
        session.submit(number, flat)
    session.end_step()
    return flats


def kept(session: Session) -> torch.Tensor:
    residuals = session.states.state_dict()
    return torch.cat([residuals[name] for name in SHAPES if name in residuals] or [torch.empty(0)])


REQUESTS = {
    "topk": Compression.topk(0.1).by(collective="allgather"),
    "artopk": Compression.topk(0.1).by(collective="star"),
    "int4": Compression.int4(),
    "powersgd": Compression.powersgd(2),
    "dense": Compression.dense(),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("gone", [3, 0], ids=["the last", "the first"])
def test_three_of_four_go_on(name: str, gone: int) -> None:
    """As a job of three that has loaded what they remembered, to the bit; nothing of the unfinished step is left."""
    three, all_are_there = InProcessWorld(3), threading.Barrier(4)
    found: dict[int, tuple[dict[str, Any], list[list[torch.Tensor]], torch.Tensor]] = {}

    def of_four(engine: InProcessEngine) -> None:
        session = opened(lambda: engine, REQUESTS[name])
        for step in range(LEAVES):
            take(session, engine.rank, step)
        all_are_there.wait()  # else a rank may leave while another has not ended the step before
        before = kept(session)
        why = f"rank {engine.rank} leaves"
        leave = (lambda: threading.Thread(target=engine.abort, args=(why,)).start()) if engine.rank == gone else None
        with pytest.raises(CommunicationError, match=f"rank {gone} leaves"):
            take(session, engine.rank, LEAVES, *([leave] if leave is not None else []))
        assert torch.equal(kept(session), before)
        if engine.rank == gone:
            session.close()
            return
        rank = engine.rank - (engine.rank > gone)
        saved = checkpoint.save(session, rank, 3)
        session.reopen(lambda: three.engine(rank))
        results = [take(session, engine.rank, step) for step in range(LEAVES, LAST)]
        assert isinstance(session.last_step, StepReport)
        assert (session.last_step.step, session.step) == (LAST - 1, LAST)
        found[rank] = saved, results, kept(session)
        session.close()

    run_ranks(4, of_four)

    def of_three(engine: InProcessEngine) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
        session = Session(SLOTS, REQUESTS[name], Settings(600, 60.0), lambda: engine)
        numels = {layout.names[0]: layout.numel for layout in LAYOUTS}
        checkpoint.load(session, found[engine.rank][0], numels, engine.rank, 3)
        session.open(list(SHAPES))
        session.set_buckets(LAYOUTS, DEVICES)
        named = engine.rank + (engine.rank >= gone)
        return [take(session, named, step) for step in range(LEAVES, LAST)], kept(session)

    for rank, (results, residual) in enumerate(run_ranks(3, of_three)):
        for mine, other in zip(found[rank][1], results, strict=True):
            assert all(torch.equal(*pair) for pair in zip(mine, other, strict=True))
        assert torch.equal(found[rank][2], residual)


def test_what_is_averaged_is_the_mean_of_those_who_stay() -> None:
    """Sums over ranks are exact here: what is sent and what is kept are all of gradients and residuals."""
    three, all_are_there = InProcessWorld(3), threading.Barrier(4)

    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        session = opened(lambda: engine, REQUESTS["topk"])
        for step in range(LEAVES):
            take(session, engine.rank, step)
        all_are_there.wait()
        before = kept(session)
        leave = (lambda: engine.abort("it leaves")) if engine.rank == 3 else (lambda: None)
        with pytest.raises(CommunicationError, match="it leaves"):
            take(session, engine.rank, LEAVES, leave)
        if engine.rank == 3:
            return None
        session.reopen(lambda: three.engine(engine.rank))
        assert not session.buckets.remember
        session.drop_step()
        assert torch.equal(kept(session), before), "the step before the failure was used"
        result = torch.cat(take(session, engine.rank, LEAVES))
        return result, torch.cat(drawn(engine.rank, LEAVES)) + before, kept(session)

    ranks = [found for found in run_ranks(4, body) if found is not None]
    owed, left = (sum(each[which] for each in ranks) for which in (1, 2))
    for result, _, _ in ranks:
        torch.testing.assert_close(3 * result + left, owed, rtol=0, atol=1e-4)


def test_a_policy_goes_on_with_what_it_has_chosen() -> None:
    """Of auto(): among as many ranks it tries nothing anew; among fewer it does, as what is the fastest may differ."""
    settings, four, three = Settings(600, 60.0, adapt=True, calibration_s=0.0), InProcessWorld(4), InProcessWorld(3)

    def body(engine: InProcessEngine) -> None:
        session = opened(lambda: engine, Compression.auto(), settings)
        while not session.steering.controller.settled:
            take(session, engine.rank, session.step)
        chosen = {names: (str(each.compressor), str(each.path)) for names, each in session.buckets.decisions.items()}
        session.reopen(lambda: four.engine(engine.rank))
        assert session.steering.controller.settled
        assert {n: (str(d.compressor), str(d.path)) for n, d in session.buckets.decisions.items()} == chosen
        take(session, engine.rank, session.step)
        if engine.rank < 3:
            session.reopen(lambda: three.engine(engine.rank))
            assert not session.steering.controller.settled
            take(session, engine.rank, session.step)
        session.close()

    run_ranks(4, body)


class Unending(InProcessEngine):
    """Runs as one that cannot be aborted, such as MPI's."""

    def abort(self, why: str) -> None:
        Engine.abort(self, why)

    def abandon(self) -> None:
        self.world.abort("a rank has failed")


def test_an_engine_that_cannot_be_aborted_says_so() -> None:
    def body(engine: InProcessEngine) -> None:
        session = opened(lambda: engine, REQUESTS["dense"])
        take(session, engine.rank, 0)
        engine.__class__ = Unending
        session.fail(ValueError("an error of the program"))
        with pytest.raises(UnsupportedError, match="the in-process engine cannot be aborted"):
            session.reopen(lambda: engine)
        with pytest.raises(CommunicationError, match="an error of the program"):
            session.refuse_after_failure()
        session.close()

    run_ranks(1, body)


def test_an_engine_that_runs_nothing_need_not_be_aborted() -> None:
    """An error that all ranks have noticed leaves no collective unfinished."""

    def body(engine: InProcessEngine) -> None:
        session = opened(lambda: engine, REQUESTS["topk"])
        take(session, engine.rank, 0)
        session._pipeline.refuse(ReplicaError("replicas differ"))
        with pytest.raises(CommunicationError, match="replicas differ"):
            take(session, engine.rank, 1)
        engine.__class__ = Unending
        session.reopen(lambda: engine)
        take(session, engine.rank, 1)
        session.close()

    run_ranks(1, body)


def test_it_comes_between_two_steps() -> None:
    def body(engine: InProcessEngine) -> None:
        session = Session(SLOTS, REQUESTS["dense"], Settings(600, 60.0), lambda: engine)
        with pytest.raises(UsageError, match="between two steps, or after"):
            session.reopen(lambda: engine)
        session.open(list(SHAPES))
        session.set_buckets(LAYOUTS, DEVICES)
        session.begin_step()
        with pytest.raises(UsageError, match="between two steps"):
            session.reopen(lambda: engine)

    run_ranks(1, body)


def test_ranks_that_are_a_step_apart_are_told() -> None:
    """One has ended a step that another has not."""
    two, again = InProcessWorld(2), InProcessWorld(2)

    def body(engine: InProcessEngine) -> None:
        session = opened(lambda: engine, REQUESTS["dense"])
        take(session, engine.rank, 0)
        session.step += engine.rank
        with pytest.raises(ConfigError, match="the step to go on with is 1 on rank 0 and 2 on rank 1"):
            session.reopen(lambda: two.engine(engine.rank))
        session.step = 1
        session.reopen(lambda: again.engine(engine.rank))
        take(session, engine.rank, 1)
        session.close()
        with pytest.raises(UsageError, match="until close"):
            session.reopen(lambda: again.engine(engine.rank))

    run_ranks(2, body)
