"""Schemes are compared where they gain the same: AR-Topk sends less than its ratio promises."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller.controller import Controller
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Agreed, Look, Timing, Took
from hvd_compress.controller.shares import Shares
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.events.history import History
from tests.controlled import known_bucket

RANKS = 4
WAYS = (Path("allgather", "ring"), Path("star", "ring"))
RATIOS, CURVE = (0.01, 0.02, 0.04, 0.08), (0.2, 0.3, 0.45, 0.6)


def test_what_was_not_seen_is_believed_to_send_all_that_its_ratio_promises() -> None:
    shares = Shares()
    assert shares.of("star") == 1.0
    assert shares.ratio("star", 0.3, RATIOS, CURVE) == 0.02
    assert shares.moved("star") == ""


def test_what_was_seen_counts_when_it_is_settled() -> None:
    shares = Shares()
    shares.learn("star", 0.15, 0.3)
    assert shares.of("star") == 1.0
    assert shares.moved("star") == "star sends 50% of the gain that its ratio promises, not 100%"
    shares.adopt("star")
    assert shares.moved("star") == ""
    assert shares.ratio("star", 0.2, RATIOS, CURVE) == 0.04
    assert shares.ratio("star", 0.45, RATIOS, CURVE) == math.inf
    assert shares.ratio("allgather", 0.45, RATIOS, CURVE) == 0.04
    shares.learn("star", 0.12, 0.3)  # 0.45 on average
    assert shares.moved("star") == ""
    shares.learn("star", 0.06, 0.3)  # 0.325
    assert shares.moved("star") == "star sends 32% of the gain that its ratio promises, not 50%"


@pytest.mark.parametrize(("sent", "promised"), [(math.nan, 0.3), (0.1, math.nan), (0.1, 0.0)])
def test_what_is_no_share_is_left_out(sent: float, promised: float) -> None:
    shares = Shares()
    shares.learn("star", sent, promised)
    shares.adopt("star")
    assert shares.of("star") == 1.0


def gain(ratio: float) -> float:
    return 1 - math.exp(-8 * ratio**0.5)


def train(
    goal: AutoRatio,
    star_share: float,
    star_seconds: float,
    controller: Controller | None = None,
    ways: tuple[Path, ...] = WAYS,
    measured: float = 1.0,
) -> Controller:
    """An all-gather takes a second for the ratio 1, STAR `star_seconds`, and sends a share of what its ratio says.

    `measured` is what curves of gain, which are not exact, make of a share.
    """
    if controller is None:
        bucket = known_bucket(1_000_000, goal.start, ways)
        controller = Controller([bucket], Network(Formulas(1e-4, 1e-9, RANKS)), Policy(), History(), goal)
    taken, look = [], None
    for step in range(150):
        (way,), (ratio,) = controller.candidates(), controller.ratios()
        star = way.scheme == "star"
        assert ratio <= goal.high or way.scheme == "dense"
        looking = controller.looking
        if looking is not None:
            sent = gain(ratio) * (star_share if star else 1.0) * measured
            look = Look(((*map(gain, looking), sent),))
        taken.append((10.0 if way.scheme == "dense" else ratio * (star_seconds if star else 1.0),))
        controller.record([Timing(0.0, taken[-1][0], 0.0)], 0.5, look)
        if controller.due:
            controller.report()
            gains = look.gains if look else ()
            agreed = Agreed(tuple(taken), ((0.0,),) * len(taken), 0.5, 1e-4, Took(), gains, 0.0, ((),) * RANKS)
            assert controller.take(step, agreed) is None
            taken, look = [], None
    assert controller.settled
    return controller


@pytest.mark.parametrize("ways", [WAYS, (*WAYS, Path("dense", "ring"))])
@pytest.mark.parametrize("measured", [0.9995, 0.99])
def test_curves_that_are_not_exact_exclude_nothing(ways: tuple[Path, ...], measured: float) -> None:
    """The gain that is wanted is out of reach, so the largest ratio is taken, which no larger one can make up for."""
    controller = train(AutoRatio(0.9, low=0.001, high=0.02), 1 / 3, 0.5, ways=ways, measured=measured)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[0]]
    assert controller.ratios() == (0.02,)
    assert controller.predicted(0, WAYS[0]) < 1.0


def test_what_is_not_in_use_is_forgotten_slowly() -> None:
    shares = Shares()
    shares.learn("star", 0.1, 0.3)
    known = []
    for _ in range(30):
        shares.adopt("allgather")
        known.append(shares.of("star"))
    assert known[0] == pytest.approx(0.4)
    assert known[1] == pytest.approx(0.46)
    assert known[-1] > 0.95


def test_schemes_are_compared_where_they_gain_the_same() -> None:
    """STAR takes half of the time with the same ratio; to gain the same it takes more."""
    goal = AutoRatio(0.5, low=0.001, high=0.5)
    controller = train(goal, 0.6, 0.5)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[0]]
    assert gain(controller.ratios()[0]) >= 0.5
    told = [event.reason for event in controller.history if event.kind == "ratio"]
    assert "star sends 60% of what its ratio promises: " in told[-1]


def test_what_sends_less_may_still_be_faster_with_a_larger_ratio() -> None:
    goal = AutoRatio(0.5, low=0.001, high=0.5)
    controller = train(goal, 0.9, 0.5)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[1]]
    assert 0.9 * gain(controller.ratios()[0]) >= 0.5


def test_what_cannot_gain_enough_within_the_bounds_is_not_chosen() -> None:
    """Of 0.6 the ratio 0.02 promises, and STAR sends a third."""
    goal = AutoRatio(0.6, low=0.001, high=0.02)
    controller = train(goal, 1 / 3, 0.1)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[0]]
    assert controller.ratios()[0] <= 0.02
    assert any("star sends 33% of what its ratio promises: not enough with any" in e.reason for e in controller.history)


def test_a_share_that_moves_is_a_reason_to_choose_anew() -> None:
    """Ranks that learned from the same data learn from other ones."""
    goal = AutoRatio(0.5, low=0.001, high=0.5)
    controller = train(goal, 0.95, 0.6)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[1]]
    controller = train(goal, 0.4, 0.6, controller=controller)
    assert [choice.candidate for choice in controller.choices()] == [WAYS[0]]
    assert any("of the gain that its ratio promises, not 95%" in event.reason for event in controller.history)
