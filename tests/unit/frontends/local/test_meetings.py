"""Local steps of ranks that meet anew, with ranks in one process: what each has learned counts by its steps, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import CommunicationError, UnsupportedError
from hvd_compress.frontends.local import outer
from hvd_compress.frontends.local.arguments import check_membership
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.schedule import Schedule
from hvd_compress.settings import Settings

NUMEL = 300


@dataclass
class Rank:
    """One that trains a vector. What it moves in each step is drawn from its name."""

    name: int
    parameter: torch.Tensor
    request: Any
    fragments: int
    schedule: Schedule

    @classmethod
    def new(cls, name: int, engine: Engine, request: Any, fragments: int = 1, **words: Any) -> Rank:
        draw = torch.Generator().manual_seed(7)
        parameter = torch.randn(NUMEL, generator=draw).requires_grad_()
        rounds = cls._rounds(parameter, engine, request, fragments)
        schedule = Schedule(rounds, **{"every": 4, "start_after": 0, "delay": 0, **words})
        return cls(name, parameter, request, fragments, schedule)

    @staticmethod
    def _rounds(parameter: torch.Tensor, engine: Engine, request: Any, fragments: int) -> Rounds:
        replicas = Replicas({"w": parameter}, lambda *_: engine, engine.rank, engine.world_size, Settings())
        return Rounds(replicas, request, outer=outer.averaging, fragment_count=fragments)

    @property
    def rounds(self) -> Rounds:
        return self.schedule._rounds

    @torch.no_grad()
    def learn(self, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1000 * self.name + step)
        moved = torch.randn(NUMEL, generator=draw) * 0.01
        self.parameter.add_(moved)
        return moved

    def take(self, count: int) -> torch.Tensor:
        """Take steps, and return what they have moved."""
        total = torch.zeros(NUMEL)
        for _ in range(count):
            self.schedule.before_step()
            total += self.learn(self.schedule.steps)
            self.schedule.after_step()
        return total

    def residual(self) -> torch.Tensor:
        return self.rounds.handle.session.states.state_dict().get("w", torch.zeros(NUMEL)).view(-1)

    def meet(self, engine: Engine, furthest: Rank, *, is_new: bool = False) -> None:
        moment, agreed = furthest.schedule.moment(), furthest.rounds.agreed.state_dict()
        counts, begins = self.schedule.meet(moment, agreed, is_new=is_new)
        self.schedule.renew(
            self._rounds(self.parameter, engine, self.request, self.fragments), counts=counts, forgets=begins
        )

    def end_round(self) -> None:
        self.rounds.open(self.schedule.place)
        self.schedule.end_round()


def in_first_job(request: Any, counts: Sequence[int], **words: Any) -> list[tuple[Rank, torch.Tensor]]:
    """Return ranks that have taken these numbers of steps, at most a round, and what each has moved."""

    def body(engine: Engine) -> tuple[Rank, torch.Tensor]:
        rank = Rank.new(engine.rank, engine, request, **words)
        rank.rounds.open(rank.schedule.place)
        moved = rank.take(counts[engine.rank])
        rank.schedule.leave()
        return rank, moved

    return list(run_ranks(len(counts), body))


REQUESTS = {"dense": Compression.dense(), "topk": Compression.topk(0.1)}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_round_ends_where_ranks_meet_and_each_weighs_by_its_steps(name: str) -> None:
    """Rank 2 of three is gone, and another has come."""
    request = REQUESTS[name]
    (first, moved), (second, other), _ = in_first_job(request, (3, 2, 3))
    before = first.rounds.anchors["w"].detach().clone()
    weights = 3 / 3, 2 / 3, 0.0

    def body(engine: Engine) -> Rank:
        rank = [first, second, None][engine.rank] or Rank.new(9, engine, request)
        rank.meet(engine, first, is_new=rank.name == 9)
        rank.end_round()
        return rank

    ranks = run_ranks(3, body)
    assert [rank.schedule.steps for rank in ranks] == [3, 3, 3]
    for rank in ranks:
        assert torch.equal(rank.parameter, first.parameter)
        assert torch.equal(rank.parameter, rank.rounds.anchors["w"])
    owed = sum((rank.residual() for rank in ranks), torch.zeros(NUMEL))
    assert bool(owed.any()) == (name == "topk")
    # Residuals keep what was to be subtracted.
    transmitted = (first.parameter.detach() - before) * sum(weights)
    torch.testing.assert_close(transmitted - owed, weights[0] * moved + weights[1] * other, atol=1e-6, rtol=1e-4)
    for rank in ranks:
        rank.rounds.close()


def test_ranks_that_have_nothing_to_exchange_meet_without() -> None:
    (first, _), (second, _) = in_first_job(REQUESTS["dense"], (4, 4))
    exchanged = first.rounds.exchanged

    def body(engine: Engine) -> int:
        rank = [first, second][engine.rank]
        rank.meet(engine, first)
        rank.end_round()
        rank.rounds.close()
        return rank.rounds.exchanged

    assert run_ranks(2, body) == [exchanged, exchanged] == [1, 1]


def ended_on_the_first_alone(
    request: Any, delay: int = 0, is_infinite: bool = False
) -> tuple[tuple[Rank, torch.Tensor], tuple[Rank, torch.Tensor]]:
    """Return two ranks and what each has moved. On the second an exchange has failed after it had sent all.

    `is_infinite`: the first has brought what is not finite, so that the exchange does not count.
    """

    def train(engine: Engine) -> tuple[Rank, torch.Tensor]:
        rank = Rank.new(engine.rank, engine, request)
        rank.rounds.open(rank.schedule.place)
        moved = rank.take(3)
        rank.schedule._delay = 4  # what is launched after the next step does not land in it
        if is_infinite and engine.rank == 0:
            with torch.no_grad():
                rank.parameter[5] = torch.inf
        moved += rank.take(1 + delay)
        if engine.rank == 0:
            rank.schedule._land()
        else:
            rank.rounds._told()  # type: ignore[misc]  # what rank 0 waits for has come
            rank.rounds.handle.session.fail(CommunicationError("the line is gone"))
        rank.schedule.leave()
        return rank, moved

    first, second = run_ranks(2, train)
    return first, second


def require_meeting_brings(learned: torch.Tensor, first: Rank, second: Rank) -> None:
    """Let both meet anew: all that they have learned is in the parameters, or in residuals."""
    start = torch.randn(NUMEL, generator=torch.Generator().manual_seed(7))

    def meet(engine: Engine) -> Rank:
        rank = [first, second][engine.rank]
        rank.meet(engine, first)
        rank.end_round()
        return rank

    ranks = run_ranks(2, meet)
    assert torch.equal(ranks[0].parameter, ranks[1].parameter)
    owed = ranks[0].residual() + ranks[1].residual()
    transmitted = 2 * (ranks[0].parameter.detach() - start)
    torch.testing.assert_close(transmitted - owed, learned, atol=1e-6, rtol=1e-4)
    for rank in ranks:
        rank.rounds.close()


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("name", REQUESTS)
def test_an_exchange_that_has_ended_on_one_rank_alone_counts_on_all(name: str, delay: int) -> None:
    (first, moved), (second, other) = ended_on_the_first_alone(REQUESTS[name], delay)
    assert [each.rounds.exchanged for each in (first, second)] == [1, 0]
    require_meeting_brings(moved + other, first, second)


@pytest.mark.parametrize("name", REQUESTS)
def test_an_exchange_that_has_ended_on_one_rank_alone_and_does_not_count(name: str) -> None:
    """The second rank brings what it has learned in the next round, all of it."""
    (first, _), (second, other) = ended_on_the_first_alone(REQUESTS[name], is_infinite=True)
    assert [each.schedule.moment()["counted"] for each in (first, second)] == [False, True]
    require_meeting_brings(other, first, second)


def test_a_rank_that_is_in_synchronous_steps_still() -> None:
    """Rank 0 has begun its first round, rank 1 not yet, and what gradients have left is forgotten on both."""
    request = REQUESTS["topk"]

    def train(engine: Engine) -> Rank:
        rank = Rank.new(engine.rank, engine, request, start_after=2)
        rank.rounds.open(rank.schedule.place)
        for _ in range(2 + (engine.rank == 0)):
            rank.parameter.grad = torch.full((NUMEL,), 0.5 + engine.rank) * torch.arange(NUMEL)
            if rank.schedule.before_step():
                with torch.no_grad():
                    rank.parameter -= 1e-4 * rank.parameter.grad
            else:
                rank.learn(3)
            rank.schedule.after_step()
        rank.schedule.leave()
        return rank

    first, second = run_ranks(2, train)
    assert second.residual().any()

    def meet(engine: Engine) -> Rank:
        rank = [first, second][engine.rank]
        rank.meet(engine, first)
        assert not rank.residual().any()
        rank.end_round()
        return rank

    ranks = run_ranks(2, meet)
    assert torch.equal(ranks[0].parameter, ranks[1].parameter)
    assert {each.schedule.place for each in ranks} == {first.schedule.place}
    for rank in ranks:
        rank.rounds.close()


def test_rounds_of_other_lengths_are_refused() -> None:
    check_membership(4, True)
    check_membership("auto", False)
    with pytest.raises(UnsupportedError, match="every=auto in a job whose ranks come and go: take a number"):
        check_membership("auto", True)
