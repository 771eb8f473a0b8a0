"""How many steps lie between exchanges, where the program leaves it open."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hvd_compress.cost.local_steps import COUNTS, LocalStepsCost
from hvd_compress.frontends.local import auto, clock, rounds, schedule
from hvd_compress.frontends.local.auto import FIRST, ROUNDS, Auto
from tests.unit.frontends.local.test_schedule import train


def test_a_cosine_of_many_steps_says_what_that_of_one_is() -> None:
    """Of vectors that share s and have n of their own in each step."""
    shared, own, steps = 0.3, 1.0, 16
    after = (steps * shared) ** 2 / ((steps * shared) ** 2 + steps * own**2)
    assert auto.cosine_of_a_step(after, steps) == pytest.approx(shared**2 / (shared**2 + own**2))
    assert auto.cosine_of_a_step(1.0, steps) == 1.0
    assert auto.cosine_of_a_step(-0.2, steps) == 0.0


def test_it_measures_first_and_says_why() -> None:
    chooses = Auto(fragments=1, delay=0, ranks=4, tells=False)
    chooses.measured(1.0, 0.0, 0.2)  # nothing is known of exchanges
    for _ in range(ROUNDS):
        assert chooses.choose() == FIRST
        assert not chooses.reason
        chooses.measured(1.0, 40.0, 0.2)
    assert chooses.choose() == COUNTS[-1]
    assert "every=32: a step takes 1 s and an exchange 40 s" in chooses.reason


def test_fragments_are_exchanged_one_after_the_other() -> None:
    """Each costs a part of what the model does."""
    chooses = Auto(fragments=2, delay=0, ranks=4, tells=False)
    for _ in range(2 * ROUNDS):
        chooses.measured(1.0, 20.0, 0.2)
    chooses.choose()
    assert "an exchange 40 s" in chooses.reason


@pytest.mark.parametrize("start_after", [0, 5])
def test_rounds_are_judged_by_their_own_exchanges(start_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by those of synchronous steps before; and ranks are as alike as the last round has shown, in a step."""
    told: list[tuple[float, float, float]] = []
    reports: list[float] = []
    launch, land = rounds.Rounds.launch, rounds.Rounds.land

    def launched(self: rounds.Rounds, fragment: int, **words: Any) -> None:
        if self.rank == 0:
            told.append(words["figures"])
        launch(self, fragment, **words)

    def landed(self: rounds.Rounds) -> bool:
        counts = land(self)
        if self.rank == 0:
            assert self.said.report is not None
            reports.append(self.said.report.cosine)
        return counts

    monkeypatch.setattr(rounds.Rounds, "launch", launched)
    monkeypatch.setattr(rounds.Rounds, "land", landed)
    train(2, start_after + 12, every="auto", start_after=start_after)
    assert told[0][1:] == (0.0, 0.0)
    assert told[1][1] > 0
    assert told[1][2] == auto.cosine_of_a_step(reports[0], FIRST) != reports[0]


def test_a_number_stays_where_another_is_hardly_better() -> None:
    chooses = Auto(fragments=1, delay=0, ranks=4, tells=False)
    costs = {every: LocalStepsCost(1.0, 0.6, 0.2, 4).cost(every) for every in COUNTS}
    assert min(costs.values()) > auto.CLEAR * costs[FIRST], "else this shows nothing"
    assert min(costs, key=costs.__getitem__) != FIRST
    for _ in range(ROUNDS):
        chooses.measured(1.0, 0.6, 0.2)
    assert chooses.choose() == FIRST


def test_a_checkpoint_goes_on_with_its_number() -> None:
    saved: dict[int, Any] = {}
    words: dict[str, Any] = {"every": "auto", "start_after": 0}
    train(2, 60, saved=saved, stop=41, **words)
    for state in saved.values():
        state["local"]["place"], state["local"]["length"] = 8, 8
    seen: list[int] = []
    choose = Auto.choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Auto, "choose", lambda self: seen.append(choose(self)) or seen[-1])
        train(2, 49, saved=saved, **words)
    assert set(seen[:2]) == {8}


def test_ranks_that_reckon_otherwise_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As processors may, which add in another order."""
    lengths: dict[int, list[int]] = {}
    choose, energy = Auto.choose, rounds._energy

    def seen(self: Auto) -> int:
        lengths.setdefault(id(self), []).append(choose(self))
        return lengths[id(self)][-1]

    monkeypatch.setattr(Auto, "choose", seen)
    monkeypatch.setattr(rounds, "_energy", lambda flat: energy(flat) * (1 + random.random() / 10))
    ranks = train(2, 150, every="auto", start_after=0)
    assert all(torch.equal(mine, first) for mine, first in zip(*ranks, strict=True))
    first, second = lengths.values()
    assert first == second


def test_a_clock_divides_work_from_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 5.0, 6.0, 8.0])
    monkeypatch.setattr(clock, "perf_counter", lambda: next(now))
    found = clock.Clock()
    found.works()
    found.works(1)
    found.exchanges()
    found.works(1)
    found.skip()
    assert found.figures() == (1.0, 4.0)


class Pretends(schedule.Clock):
    """Exchanges cost nothing at first, then everything."""

    looks = 0

    def figures(self) -> tuple[float, float]:
        self.looks += 1
        return (1.0, 1e-9) if self.looks < 20 else (1e-9, 1.0)


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (2, 1)])
def test_a_training_becomes_synchronous_and_local_again(
    fragments: int, delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    choose = Auto.choose
    monkeypatch.setattr(schedule, "Clock", Pretends)
    monkeypatch.setattr(schedule, "LOOK_AGAIN", 2)
    monkeypatch.setattr(Auto, "choose", lambda self: lengths.append(choose(self)) or lengths[-1])
    ranks: Sequence[list[torch.Tensor]] = train(2, 150, None, fragments, every="auto", start_after=3, delay=delay)
    assert all(torch.equal(mine, first) for mine, first in zip(*ranks, strict=True))
    kinds = [length for number, length in enumerate(lengths) if number == 0 or length != lengths[number - 1]]
    assert kinds[0] == FIRST
    assert 1 in kinds
    assert kinds[-1] == COUNTS[-1]
