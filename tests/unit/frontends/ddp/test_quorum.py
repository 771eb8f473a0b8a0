"""DDP under a manager: what a step that counts on some ranks alone leaves behind; jobs of it are in tests/jobs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.dialing import Listener
from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.frontends.ddp.quorum import Quorum, QuorumHook
from hvd_compress.settings import Settings
from tests.unit.frontends.managers import Manager, meet, together

NUMEL = 600


class Bucket:
    """The only one of a step, or one of two."""

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor, number: int = 0, last: int = 0) -> None:
        self._parameter, self._gradient, self._number, self._last = parameter, gradient, number, last

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._number == self._last

    def buffer(self) -> torch.Tensor:
        return self._gradient

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]


class Rank:
    """One of a training whose buckets a test hands over."""

    def __init__(self, rank: int, request: Any, shape: tuple[int, ...] = (NUMEL,)) -> None:
        self.rank, self.manager, self.listener = rank, Manager(), Listener()
        self.parameter = torch.zeros(shape, requires_grad=True)
        self.quorum: Quorum | None = None
        settings = Settings(timeout_s=20.0)
        self.hook = QuorumHook({"w": self.parameter}, request, settings, self.manager, self.now)

    def now(self) -> Quorum | None:
        return self.quorum

    def exchange(self, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(10 * step + self.rank)
        gradient = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
        return self.hook(Bucket(self.parameter, gradient)).wait()  # type: ignore[no-any-return]

    def owed(self) -> torch.Tensor:
        (own,) = self.hook.handle.state_dict()["ranks"].values()
        found: torch.Tensor = own["residuals"].get("w", torch.zeros(NUMEL))
        return found.view(-1)


@pytest.fixture
def ranks() -> Any:
    made = [Rank(rank, Compression.topk(0.2).by(collective="allgather")) for rank in range(2)]
    meet(1, *made)
    yield made
    for each in made:
        each.hook.close()
        each.listener.close()


def computed(*steps: int) -> torch.Tensor:
    total = torch.zeros(NUMEL)
    for step in steps:
        for rank in range(2):
            draw = torch.Generator().manual_seed(10 * step + rank)
            total += torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    return total


@pytest.mark.parametrize("what", ["counts", "does not count", "is not finite"])
def test_an_exchange_that_has_failed_on_one_rank_alone(ranks: list[Rank], what: str) -> None:
    """It counts on the other, or does not, as too few would have taken part; or counts there and moves nothing."""
    counts = what == "counts"
    first, second = ranks
    sums = [2 * each for each in together(ranks, lambda rank: rank.exchange(0))]
    assert torch.equal(sums[0], sums[1])
    for each in ranks:
        each.manager.step = 1
    before = [each.owed() for each in ranks]
    has_ended = threading.Event()

    def fails(*_: Any) -> Any:
        assert has_ended.wait(60)  # all has been sent
        raise CommunicationError("the line is gone")

    def body(rank: Rank) -> torch.Tensor:
        if what == "is not finite" and rank is first:
            found = rank.hook(Bucket(rank.parameter, torch.full((NUMEL,), torch.inf))).wait()
        else:
            found = rank.exchange(1)
        has_ended.set()
        return found

    second.hook._hook.session.end_step = fails  # type: ignore[method-assign]
    ended, _ = together(ranks, body)
    assert first.manager.error is None
    assert "the line is gone" in str(second.manager.error)
    if counts:
        sums[0] += 2 * ended
    for each in ranks:
        each.manager.step += what != "does not count"  # the second is given the state of the first
    second.hook.is_behind = what != "does not count"
    meet(2, *ranks)
    more = together(ranks, lambda rank: rank.exchange(2))
    assert torch.equal(more[0], more[1])
    assert torch.equal(sums[0] + 2 * more[0] + first.owed() + second.owed(), computed(0, *[1] * counts, 2))
    assert any(each.any() for each in before)


def test_who_does_not_take_part_brings_zeros_and_the_mean_is_over_the_others(ranks: list[Rank]) -> None:
    for each in ranks:
        each.manager.participants = 1
    ranks[1].manager.takes_part = False
    found = together(ranks, lambda rank: rank.exchange(0))
    draw = torch.Generator().manual_seed(0)
    expected = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0] + ranks[0].owed(), expected)
    assert not ranks[1].owed().any()


def test_who_cannot_begin_lets_the_others_know(ranks: list[Rank]) -> None:
    first, second = ranks
    second.manager.fails_to_begin = RuntimeError("no state came")
    together(ranks, lambda rank: rank.exchange(0))
    assert str(first.manager.error) == "rank 1 cannot begin its step: no state came"
    second.manager.fails_to_begin = None
    meet(2, *ranks)
    found = together(ranks, lambda rank: rank.exchange(1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(2 * found[0] + first.owed() + second.owed(), computed(1))


@pytest.mark.parametrize("known", [False, True], ids=["in the first step", "later"])
def test_another_exchange_fails_between_two_buckets(known: bool) -> None:
    """DDP waits for no bucket, and the other rank for none, either."""
    made = [Rank(rank, Compression.topk(0.2)) for rank in range(2)]
    more = [torch.zeros(NUMEL, requires_grad=True) for _ in made]
    for rank, parameter in zip(made, more, strict=True):
        named = {"w": rank.parameter, "v": parameter}
        rank.hook = QuorumHook(named, Compression.topk(0.2), Settings(timeout_s=20.0), rank.manager, rank.now)
    meet(1, *made)

    def take(rank: Rank, fails: bool) -> list[bool]:
        futures = [rank.hook(Bucket(rank.parameter, torch.ones(NUMEL), 0, 1))]
        if fails and rank.rank == 1:
            rank.manager.error = RuntimeError("connection reset by peer")
        futures.append(rank.hook(Bucket(more[rank.rank], torch.ones(NUMEL), 1, 1)))
        return [each.done() for each in futures]

    if known:
        assert together(made, lambda rank: take(rank, False)) == [[True, True]] * 2
        for each in made:
            each.manager.step += 1
    assert together(made, lambda rank: take(rank, True)) == [[True, True]] * 2
    assert made[0].manager.error is not None
    assert str(made[1].manager.error) == "connection reset by peer"
    for each in made:
        each.hook.close()
        each.listener.close()


@pytest.mark.parametrize("all_are_behind", [False, True])
def test_who_comes_takes_over_what_all_have_alike_and_others_keep_what_they_owe(all_are_behind: bool) -> None:
    """It is the first of the new quorum, and the survivor may have been given a state itself just before."""
    request, shape = Compression.powersgd(2), (30, 20)
    made = [Rank(rank, request, shape) for rank in range(2)]
    meet(1, *made)
    for step in range(3):
        together(made, lambda rank, step=step: rank.exchange(step))
        for each in made:
            each.manager.step += 1
    survivor, new = made[1], Rank(2, request, shape)
    owed = survivor.owed()
    assert owed.any()
    new.hook.is_behind, survivor.hook.is_behind = True, all_are_behind
    new.manager.step = survivor.manager.step
    meet(2, new, survivor)
    first, second = together([new, survivor], lambda rank: rank.exchange(3))
    assert torch.equal(first, second)
    draw = torch.Generator().manual_seed(30 + 1)
    own = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    draw = torch.Generator().manual_seed(30 + 2)
    other = torch.randint(-9, 9, (NUMEL,), generator=draw).float()
    torch.testing.assert_close(2 * first + survivor.owed() + new.owed(), owed + own + other, atol=1e-3, rtol=1e-4)
    for each in (*made, new):
        each.hook.close()
        each.listener.close()


def test_what_a_program_has_said_holds_in_each_quorum(ranks: list[Rank]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(1))

    def rates() -> tuple[float, ...]:
        return (0.5,)

    for each in ranks:
        each.hook.handle.follow_loss_scale(scaler)
        each.hook.handle.session.steering.learning_rates = rates
    together(ranks, lambda rank: rank.exchange(0))
    owed = [each.owed() for each in ranks]
    scaler.update(8.0)
    for each in ranks:
        each.manager.step = 1
    meet(2, *ranks)
    found = together(ranks, lambda rank: rank.exchange(1))
    assert torch.equal(2 * found[0] + ranks[0].owed() + ranks[1].owed(), 2 * (owed[0] + owed[1]) + computed(1))
    assert all(each.hook.handle.session.steering.learning_rates is rates for each in ranks)


def test_what_was_loaded_before_the_first_step_is_kept(ranks: list[Rank]) -> None:
    together(ranks, lambda rank: rank.exchange(0))
    saved = [each.hook.handle.state_dict() for each in ranks]
    owed = [each.owed() for each in ranks]
    others = [Rank(rank, Compression.topk(0.2).by(collective="allgather")) for rank in range(2)]
    for other, state in zip(others, saved, strict=True):
        other.hook.handle.load_state_dict(state)
    meet(7, *others)
    more = together(others, lambda rank: rank.exchange(1))
    assert torch.equal(2 * more[0] + others[0].owed() + others[1].owed(), owed[0] + owed[1] + computed(1))
    for each in others:
        each.hook.close()
        each.listener.close()


def test_a_second_exchange_in_one_step_is_warned_of(ranks: list[Rank]) -> None:
    together(ranks, lambda rank: rank.exchange(0))
    with pytest.warns(UserWarning, match=r"Run all backward passes but the last within model.no_sync\(\)"):
        together(ranks, lambda rank: rank.exchange(1))


def test_who_asks_for_something_else_is_refused_by_name() -> None:
    made = [Rank(0, Compression.topk(0.2)), Rank(1, Compression.int4())]
    made[1].manager.takes_part = False
    meet(1, *made)
    _, refused = together(made, lambda rank: rank.exchange(0))
    assert isinstance(refused, ConfigError)
    assert "this rank, 1, cannot train with the others: compression is " in str(refused)
    assert "ranks [1] are refused: compression is " in str(made[0].manager.error)
    for each in made:
        each.hook.close()
        each.listener.close()
