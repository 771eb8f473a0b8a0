"""An exchange session by itself: flat tensors in, averages out, whatever the front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.compressors import Cast, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.decision import Decision, Request
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies import BucketMetrics, DecisionPolicy, Launch
from hvd_compress.session import ExchangeSession
from hvd_compress.settings import Settings

SHAPES = {"a": (20, 10), "b": (30,), "c": (12, 5), "d": (7,)}
DEVICES = {"cpu": torch.device("cpu")}
SETTINGS = Settings(600, 60)


class Playing(DecisionPolicy):
    """Says what a test wants, and notes what it is asked."""

    def __init__(self, by_step: Sequence[Decision]) -> None:
        self.by_step, self.asked, self.seen = by_step, [], []

    def make(self, request: Request) -> Playing:
        return self

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self.asked.append(("setup", step, [layout.names for layout in buckets]))
        self._count = len(buckets)
        return [self.by_step[min(step, len(self.by_step) - 1)]] * len(buckets)

    def decide(self, step: int) -> Mapping[int, Decision]:
        self.asked.append(("decide", step))
        return dict.fromkeys(range(self._count), self.by_step[min(step, len(self.by_step) - 1)])

    def launched(self, step: int) -> None:
        self.asked.append(("launched", step))

    def observe(self, step: int, metrics: Sequence[BucketMetrics]) -> None:
        self.asked.append(("observe", step, len(metrics)))

    def __repr__(self) -> str:
        return "Playing"


DENSE, SKIP = Decision(Cast(), Path("dense")), Decision(Cast(), Path("skip"))
TOPK, POWERSGD = Decision(TopK(0.1), Path("allgather")), Decision(PowerSGD(2), Path("allreduce"))


def layout(*names: str) -> Layout:
    return Layout(names, tuple(SHAPES[name] for name in names))


def opened(engine: InProcessEngine, policy: DecisionPolicy | None = None) -> ExchangeSession:
    session = ExchangeSession(Request(Cast(), policy=policy), SETTINGS, lambda: engine)
    session.open({name: Slot(shape, torch.float32) for name, shape in SHAPES.items()}, list(SHAPES))
    return session


def drawn(numel: int, rank: int, step: int, number: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * step + 10 * number + rank))


def take(session: ExchangeSession, rank: int, step: int) -> list[torch.Tensor]:
    """Exchange drawn gradients of all buckets; return the results."""
    flats = [drawn(each.numel, rank, step, number) for number, each in enumerate(session.layouts)]
    for number, flat in reversed(list(enumerate(flats))):
        session.submit(number, flat)
    session.end_step()
    return flats


def residual(session: ExchangeSession, names: Sequence[str]) -> torch.Tensor:
    kept = session.states.state_dict()
    zeros = [torch.zeros(torch.Size(SHAPES[name]).numel()) for name in names]
    return torch.cat([kept.get(name, zero) for name, zero in zip(names, zeros, strict=True)])


def test_a_session_needs_no_parameters() -> None:
    def body(engine: InProcessEngine):
        session = opened(engine)
        session.plan([layout("a", "b"), layout("c", "d")], DEVICES)
        return [take(session, engine.rank, step) for step in range(2)]

    for found in run_ranks(2, body):
        for step, flats in enumerate(found):
            for number, flat in enumerate(flats):
                expected = sum(drawn(flat.numel(), rank, step, number) for rank in range(2)) / 2
                torch.testing.assert_close(flat, expected)


def test_a_policy_is_asked_in_the_promised_order() -> None:
    def body(engine: InProcessEngine):
        policy = Playing([DENSE])
        session = opened(engine, policy)
        session.plan([layout("a", "b"), layout("c", "d")], DEVICES)
        for step in range(2):
            take(session, engine.rank, step)
        session.close()
        return policy.asked

    buckets = [("a", "b"), ("c", "d")]
    steps = [("launched", 0), ("observe", 0, 2), ("decide", 1), ("launched", 1), ("observe", 1, 2), ("decide", 2)]
    assert run_ranks(2, body)[0] == [("setup", 0, buckets), ("decide", 0), *steps]


@pytest.mark.parametrize("decisions", [[DENSE, TOPK, SKIP, POWERSGD, DENSE], [SKIP, POWERSGD, SKIP, TOPK, DENSE]])
def test_what_is_remembered_outlives_every_change_of_decision(decisions: list[Decision]) -> None:
    """What came and what is left is what was given; PowerSGD's Q stays while others decide."""

    def body(engine: InProcessEngine):
        session = opened(engine, Playing(decisions))
        session.plan([layout("a", "b"), layout("c", "d")], DEVICES)
        came, kept = 0, []
        for step in range(len(decisions)):
            came = came + torch.cat(take(session, engine.rank, step))
            kept.append(set(session.states.own_state_dict().get("powersgd.q", {})))
        return came, residual(session, "abcd"), kept

    ranks = run_ranks(2, body)
    given = sum(
        torch.cat([drawn(230, rank, step, 0), drawn(67, rank, step, 1)]) for rank in range(2) for step in range(5)
    )
    torch.testing.assert_close(ranks[0][0] + (ranks[0][1] + ranks[1][1]) / 2, given / 2, rtol=1e-4, atol=1e-4)
    first = decisions.index(POWERSGD)
    assert all(names == {"a"} for names in ranks[0][2][first:])


def test_buckets_that_are_cut_anew_within_a_step_keep_what_is_remembered() -> None:
    """As DDP does: the first bucket has left when the second turns out to be another one."""

    def body(engine: InProcessEngine):
        policy = Playing([TOPK])
        session = opened(engine, policy)
        session.plan([layout("a"), layout("b", "c"), layout("d")], DEVICES)
        came = {name: 0 for name in SHAPES}

        def collect(flats: list[torch.Tensor]) -> None:
            for each, flat in zip(session.layouts, flats, strict=True):
                parts = torch.split(flat, list(each.segments))
                for name, part in zip(each.names, parts, strict=True):
                    came[name] = came[name] + part

        collect(take(session, engine.rank, 0))
        before = residual(session, "abcd")
        flats = [drawn(200, engine.rank, 1, 0), drawn(97, engine.rank, 1, 1)]
        session.submit(0, flats[0])
        session.plan([layout("a"), layout("d", "b", "c")], DEVICES)
        assert session.is_launched(0)
        assert not session.is_launched(1)
        assert torch.equal(residual(session, "bcd"), before[200:])
        session.submit(1, flats[1])
        session.end_step()
        collect(flats)
        collect(take(session, engine.rank, 2))
        return torch.cat([came[name] for name in "abcd"]), residual(session, "abcd"), policy.asked

    ranks = run_ranks(2, body)
    given = sum(torch.cat([drawn(200, rank, 0, 0), drawn(90, rank, 0, 1), drawn(7, rank, 0, 2)]) for rank in range(2))
    for step in (1, 2):
        for rank in range(2):
            d, b, c = torch.split(drawn(97, rank, step, 1), [7, 30, 60])
            given = given + torch.cat([drawn(200, rank, step, 0), b, c, d])
    torch.testing.assert_close(ranks[0][0] + (ranks[0][1] + ranks[1][1]) / 2, given / 2, rtol=1e-4, atol=1e-4)
    asked = ranks[0][2]
    assert ("setup", 1, [("a",), ("d", "b", "c")]) in asked
    assert ("observe", 1, 2) not in asked  # half of it travelled by what another set-up had said
    assert ("observe", 2, 2) in asked
