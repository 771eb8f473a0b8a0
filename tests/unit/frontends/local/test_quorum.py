"""Local steps under a manager: what is learned in a round that does not count; jobs of it are in tests/jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.dialing import Listener
from hvd_compress.frontends.ddp.quorum import Quorum
from hvd_compress.frontends.local.outer import averaging
from hvd_compress.frontends.local.quorum import QuorumSteps
from hvd_compress.settings import Settings
from tests.unit.frontends.managers import Manager, meet, together


class Rank:
    """One that trains a vector, and moves it by whole numbers."""

    def __init__(self, rank: int) -> None:
        self.rank, self.manager, self.listener = rank, Manager(), Listener()
        self.quorum: Quorum | None = None
        self.parameter = torch.zeros(50, requires_grad=True)
        self.steps = QuorumSteps(
            self.manager,
            {"w": self.parameter},
            Compression.dense(),
            Settings(timeout_s=20.0),
            lambda: self.quorum,
            every=2,
            outer=averaging,
        )

    def take(self, value: float) -> None:
        with torch.no_grad():
            self.parameter += value
        self.steps.after_step()

    def at(self) -> float:
        assert (self.parameter == self.parameter[0]).all()
        return float(self.parameter.detach()[0])


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made = [Rank(rank) for rank in range(2)]
    meet(1, *made)
    yield made
    for each in made:
        each.steps.hook.close()
        each.listener.close()


def take_two(rank: Rank) -> float:
    for _ in range(2):
        rank.take(1.0 + rank.rank)
    return rank.at()


def test_a_round_that_does_not_count_goes_into_the_next_one(ranks: list[Rank]) -> None:
    assert together(ranks, take_two) == [3.0, 3.0]
    for each in ranks:
        each.manager.commits = False
    assert together(ranks, take_two) == [5.0, 7.0]
    for each in ranks:
        each.manager.commits = True
    meet(2, *ranks)

    def take_one(rank: Rank) -> float:
        rank.take(1.0 + rank.rank)
        return rank.at()

    assert together(ranks, take_one) == [7.5, 7.5]


def test_what_is_not_finite_moves_nothing_and_is_given_up(ranks: list[Rank]) -> None:
    with torch.no_grad():
        ranks[1].parameter[3] = torch.inf
    assert together(ranks, lambda rank: [rank.take(1.0), rank.take(1.0)][:0]) == [[], []]
    assert [each.at() for each in ranks] == [2.0, 0.0]
    assert together(ranks, take_two) == [3.0 + 1.0, 3.0 + 1.0]  # of 2 + 2 and 0 + 4


def test_who_is_given_the_state_of_another_forgets_its_own(ranks: list[Rank]) -> None:
    together(ranks, take_two)
    given = ranks[0].steps.state_dict()
    ranks[1].take(9.0)
    ranks[1].steps.load_state_dict(given)
    ranks[1].steps._return_where_given()
    assert ranks[1].at() == 3.0
    assert ranks[1].steps.hook.is_behind
