"""An exchange session by itself: flat tensors in, averages out, whatever the front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.compressors import Cast, Compressor, EFSign, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines import wire
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, UsageError
from hvd_compress.policies import DecisionPolicy, Launch
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.services.base import SeenStep, Service
from hvd_compress.session import checkpoint
from hvd_compress.session.session import Session
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import remembered

SHAPES = {"a": (20, 10), "b": (30,), "c": (12, 5), "d": (7,)}
DEVICES = {"cpu": torch.device("cpu")}
SETTINGS = Settings(600, 60)


class Seeing(Service):
    """Tells a policy of the steps that it sees."""

    def __init__(self, policy: Playing) -> None:
        self._policy = policy

    def launched(self, step: int) -> None:
        self._policy.asked.append(("launched", step))

    def exchanged(self, seen: SeenStep) -> None:
        self._policy.see(seen)


class Playing(DecisionPolicy, PolicySettings):
    """Says what a test wants, and notes what it is asked."""

    def __init__(self, by_step: Sequence[Decision]) -> None:
        self.by_step, self.asked, self.seen = by_step, [], []
        self.services = (Seeing(self),)

    def make(self, request: Request, settings: Settings) -> Playing:
        return self

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self.asked.append(("setup", step, [layout.names for layout in buckets]))
        self._count = len(buckets)
        return [self.by_step[min(step, len(self.by_step) - 1)]] * len(buckets)

    def decide(self, step: int) -> Mapping[int, Decision]:
        self.asked.append(("decide", step))
        return dict.fromkeys(range(self._count), self.by_step[min(step, len(self.by_step) - 1)])

    def see(self, seen: SeenStep) -> None:
        moments = seen.moments
        assert moments.before_s <= moments.begun_s <= moments.waiting_s <= moments.ended_s
        if seen.is_regular:
            self.asked.append(("see", seen.step, len(seen.metrics)))

    def __repr__(self) -> str:
        return "Playing"


DENSE, EFSIGN = Decision(Cast(), Path("dense")), Decision(EFSign(), Path("allgather"))
TOPK, POWERSGD = Decision(TopK(0.1), Path("allgather")), Decision(PowerSGD(2), Path("allreduce"))


def layout(*names: str) -> Layout:
    return Layout(names, tuple(SHAPES[name] for name in names))


def opened(engine: InProcessEngine, policy: DecisionPolicy | None = None) -> Session:
    slots = {name: Slot(shape, torch.float32) for name, shape in SHAPES.items()}
    session = Session(slots, Request(Cast(), policy=policy), SETTINGS, lambda: engine)
    session.open(list(SHAPES))
    return session


def drawn(numel: int, rank: int, step: int, number: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * step + 10 * number + rank))


def take(session: Session, rank: int, step: int) -> list[torch.Tensor]:
    """SeenStep drawn gradients of all buckets; return the results."""
    flats = [drawn(each.numel, rank, step, number) for number, each in enumerate(session.buckets.layouts)]
    for number, flat in reversed(list(enumerate(flats))):
        session.submit(number, flat)
    session.end_step()
    return flats


def residual(session: Session, names: Sequence[str]) -> torch.Tensor:
    kept = session.states.state_dict()
    zeros = [torch.zeros(torch.Size(SHAPES[name]).numel()) for name in names]
    return torch.cat([kept.get(name, zero) for name, zero in zip(names, zeros, strict=True)])


def test_a_session_needs_no_parameters() -> None:
    def body(engine: InProcessEngine):
        session = opened(engine)
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
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
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
        for step in range(2):
            take(session, engine.rank, step)
        session.close()
        return policy.asked

    buckets = [("a", "b"), ("c", "d")]
    steps = [("launched", 0), ("see", 0, 2), ("decide", 1), ("launched", 1), ("see", 1, 2), ("decide", 2)]
    assert run_ranks(2, body)[0] == [("setup", 0, buckets), ("decide", 0), *steps]


@pytest.mark.parametrize(
    "decisions",
    [
        row
        for each in (EFSIGN, *dict(brought("DECISIONS")).values())
        for row in ([DENSE, TOPK, each, POWERSGD, DENSE], [each, POWERSGD, each, TOPK, DENSE])
    ],
)
def test_what_is_remembered_outlives_every_change_of_decision(decisions: list[Decision]) -> None:
    """What came and what is left is what was given; PowerSGD's Q stays while others decide."""

    def body(engine: InProcessEngine):
        session = opened(engine, Playing(decisions))
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
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
        session.set_buckets([layout("a"), layout("b", "c"), layout("d")], DEVICES)
        came = {name: 0 for name in SHAPES}

        def collect(flats: list[torch.Tensor]) -> None:
            for each, flat in zip(session.buckets.layouts, flats, strict=True):
                parts = torch.split(flat, list(each.segments))
                for name, part in zip(each.names, parts, strict=True):
                    came[name] = came[name] + part

        collect(take(session, engine.rank, 0))
        before = residual(session, "abcd")
        flats = [drawn(200, engine.rank, 1, 0), drawn(97, engine.rank, 1, 1)]
        session.submit(0, flats[0])
        session.set_buckets([layout("a"), layout("d", "b", "c")], DEVICES)
        assert session.buckets.is_launched(0)
        assert not session.buckets.is_launched(1)
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
    assert ("see", 1, 2) not in asked  # half of it travelled by what another set-up had said
    assert ("see", 2, 2) in asked


def test_the_step_of_rank_0_counts() -> None:
    def body(engine: InProcessEngine) -> int:
        session = Session({"a": Slot((4,), torch.float32)}, Request(Cast()), SETTINGS, lambda: engine)
        session.step = 5 - engine.rank
        session.open(["a"])
        return session.step

    assert run_ranks(2, body) == [5, 5]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_compressors_state_of_another_shape_goes_on_or_starts_anew(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not goes_on:
        monkeypatch.setattr(PowerSGD, "resized", Compressor.resized)

    def body(engine: InProcessEngine) -> list[int]:
        policy = Playing([POWERSGD, Decision(PowerSGD(3), Path("allreduce")), POWERSGD])
        session = opened(engine, policy)
        session.set_buckets([layout("a", "b")], DEVICES)
        found = []
        for step in range(3):
            take(session, engine.rank, step)
            found.append(session.states.own_state_dict()["powersgd.q"]["a"].shape[1])
        return found

    with nullcontext() if goes_on else pytest.warns(UserWarning, match="the compression has other settings"):
        assert run_ranks(2, body) == [[3, 2, 2]] * 2  # each as the next step wants it


class Failing(Playing):
    """Fails after what buckets remember has been committed."""

    def see(self, seen: SeenStep) -> None:
        if seen.step == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("decision", [TOPK, POWERSGD], ids=("topk", "powersgd"))
def test_a_step_that_fails_after_the_exchange_leaves_what_is_remembered(decision: Decision) -> None:
    def body(engine: InProcessEngine) -> None:
        session = opened(engine, Failing([decision]))
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
        take(session, engine.rank, 0)
        before, own = session.states.state_dict(), session.states.own_state_dict()
        with pytest.raises(KeyboardInterrupt):
            take(session, engine.rank, 1)
        after = session.states.state_dict()
        assert any(residual.any() for residual in before.values())
        assert all(torch.equal(before[name], after[name]) for name in before)
        for kind, tensors in session.states.own_state_dict().items():
            assert all(torch.equal(own[kind][name], tensor) for name, tensor in tensors.items())
        for _ in range(2):  # and says so each time
            with pytest.raises(CommunicationError, match="nothing is exchanged any more"):
                take(session, engine.rank, 1)

    body(InProcessWorld(1).engine(0))


def test_a_residual_that_is_loaded_between_steps_is_sent_by_whatever_decides() -> None:
    def body(engine: InProcessEngine):
        session = opened(engine)
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
        take(session, engine.rank, 0)
        saved = checkpoint.save(session, engine.rank, 2)
        remembered(saved)["residuals"] = {"b": torch.full((30,), 2.0)}
        numels = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
        checkpoint.load(session, saved, numels, engine.rank, 2)
        return take(session, engine.rank, 1)[0][200:], residual(session, "b")

    expected = sum(drawn(230, rank, 1, 0)[200:] for rank in range(2)) / 2 + 2.0
    for came, left in run_ranks(2, body):
        torch.testing.assert_close(came, expected)
        assert not left.any()


@pytest.mark.parametrize("kind", ["float64", "sparse"])
def test_a_residual_waits_where_it_cannot_be_sent(kind: str) -> None:
    """float64 gradients and rows of sparse ones travel without: nothing fails, and nothing is lost."""

    def body(engine: InProcessEngine):
        dtype = torch.float64 if kind == "float64" else torch.float32
        session = Session({"a": Slot((4, 3), dtype)}, Request(Cast()), SETTINGS, lambda: engine)
        kept = torch.arange(12.0) if engine.rank == 0 else None
        session.states.load_state_dict({"a": kept} if kept is not None else {}, {"a": 12})
        session.open(["a"])
        session.set_buckets([Layout(("a",), ((4, 3),), dtype, sparse=kind == "sparse")], DEVICES)
        for _ in range(2):
            gradient = torch.ones(4, 3, dtype=dtype)
            session.submit(0, gradient.to_sparse(1) if kind == "sparse" else gradient.reshape(-1))
            session.end_step()
        return session.states.state_dict().get("a"), kept

    for left, kept in run_ranks(2, body):
        assert (left is None) == (kept is None)
        assert kept is None or torch.equal(left, kept)


def test_a_bucket_that_had_left_travels_by_the_new_decision_from_the_next_step_on() -> None:
    """Also where the policy says only what changes."""

    class Sparing(Playing):
        def decide(self, step: int) -> Mapping[int, Decision]:
            return {}

    def body(engine: InProcessEngine):
        policy = Sparing([DENSE, TOPK])
        session = opened(engine, policy)
        session.set_buckets([layout("a"), layout("b", "c"), layout("d")], DEVICES)
        take(session, engine.rank, 0)
        session.submit(0, drawn(200, engine.rank, 1, 0))
        session.set_buckets([layout("a"), layout("d", "b", "c")], DEVICES)
        session.submit(1, drawn(97, engine.rank, 1, 1))
        before = session.buckets.decisions[("a",)]
        session.end_step()
        return before, session.buckets.decisions

    for before, after in run_ranks(2, body):
        assert before == DENSE
        assert set(after.values()) == {TOPK}


def take_some(session: Session, rank: int, step: int, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
    """SeenStep drawn gradients of some buckets; return the results, by number."""
    session.begin_step(numbers)
    flats = {number: drawn(session.buckets.layouts[number].numel, rank, step, number) for number in numbers}
    for number in reversed(numbers):
        session.submit(number, flats[number])
    session.end_step()
    return flats


@pytest.mark.parametrize("decision", [DENSE, TOPK, EFSIGN, POWERSGD], ids=["dense", "topk", "efsign", "powersgd"])
@pytest.mark.parametrize("tracks", [1, 2])
def test_a_step_may_be_of_some_buckets(decision: Decision, tracks: int) -> None:
    """Buckets that take turns do as in sessions of their own, to the bit, and remember what their last turn left."""
    every = [layout("a"), layout("b", "c"), layout("d")]
    turns = [(1,), (0, 2), (1,), (2,), (0, 1, 2), (0,)]

    def together(engine: InProcessEngine) -> tuple[list[dict[int, torch.Tensor]], list[torch.Tensor]]:
        engine.tracks_asked = tracks
        session = opened(engine, Playing([decision] * 3))
        session.set_buckets(every, DEVICES)
        found = []
        for step, turn in enumerate(turns):
            before = {number: residual(session, each.names).clone() for number, each in enumerate(every)}
            found.append(take_some(session, engine.rank, step, turn))
            assert session.last_step.dense_bytes == sum(wire.allreduce(every[n].nbytes, 2) for n in turn)
            others = [number for number in range(3) if number not in turn]
            assert all(torch.equal(residual(session, every[number].names), before[number]) for number in others)
        session.set_buckets(every, DEVICES)  # as they are
        session.drop_step()
        assert torch.equal(residual(session, every[0].names), before[0]), "the last turn is taken back"
        assert all(torch.equal(residual(session, every[n].names), before[n]) for n in (1, 2)), "the one before is not"
        return found, [residual(session, each.names) for each in every]

    def apart(engine: InProcessEngine, number: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        session = opened(engine, Playing([decision]))
        session.set_buckets([every[number]], DEVICES)
        found = []
        for step, turn in enumerate(turns):
            session.step = step
            if number in turn:
                flat = drawn(every[number].numel, engine.rank, step, number)
                session.begin_step()
                session.submit(0, flat)
                session.end_step()
                found.append(flat)
                kept = residual(session, every[number].names)
            if step == len(turns) - 1 and number in turn:
                session.drop_step()
                kept = residual(session, every[number].names)
        return found, kept

    ranks = run_ranks(2, together)
    for number in range(3):
        for (found, kept), (own, owned) in zip(ranks, run_ranks(2, partial(apart, number=number)), strict=True):
            mine = [flats[number] for flats in found if number in flats]
            assert all(torch.equal(*pair) for pair in zip(mine, own, strict=True))
            assert torch.equal(kept[number], owned)


def test_results_may_be_fetched_later() -> None:
    """A step may go on while the program trains, and is one step; another is refused until it is over."""

    def body(engine: InProcessEngine) -> None:
        session = opened(engine, Playing([TOPK] * 2))
        session.set_buckets([layout("a", "b"), layout("c", "d")], DEVICES)
        flat = drawn(session.buckets.layouts[0].numel, engine.rank, 0, 0)
        session.begin_step([0])
        session.submit(0, flat)
        saved = checkpoint.save(session, engine.rank, 2)
        assert not any(each.any() for each in saved["ranks"][f"rank {engine.rank} of 2"]["residuals"].values())
        with pytest.raises(UsageError, match="step 0 is on its way"):
            session.drop_step()
        with pytest.raises(ValueError, match="not in"):
            session.submit(1, torch.zeros(session.buckets.layouts[1].numel))
        report = session.end_step()
        assert (report.step, session.step) == (0, 1)

    run_ranks(2, body)
