"""When gains are looked at, and when steps are rolled out again."""

from __future__ import annotations

import pytest

from hvd_compress.controller.expected import Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.network import Network
from hvd_compress.controller.ratios import LOOK_STEPS, Ratios
from hvd_compress.controller.report import Agreed, Timing, Took
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.events.history import History
from tests.controlled import known_bucket

WAY = Path("allgather", "ring")
WINDOW, SHARE = 4, 0.01


def prepared(goal: AutoRatio) -> Ratios:
    bucket = known_bucket(100_000, goal.start, (WAY, Path("dense", "ring")))
    return Ratios(goal, [bucket], [Expected(bucket, Network(Formulas(1e-4, 1e-9, 4)))], History())


def seen(*gains: float, look_s: float = 0.0) -> Agreed:
    return Agreed(((0.01,),), ((0.0,),), 0.1, 0.0, Took(), (gains,), look_s)


def seen_nothing() -> Agreed:
    return Agreed(((0.01,),), ((0.0,),), 0.1, 0.0, Took())


def windows_until_a_look(ratios: Ratios, most: int = 1000) -> int:
    """Return how many windows pass, without a look, until the last step of one is to be looked at."""
    for window in range(most):
        if ratios.looking(True, True, WINDOW) is not None:
            return window
        ratios.moved(seen_nothing(), [WAY], WINDOW, SHARE, 0)
    return most


@pytest.mark.parametrize(("look_s", "windows"), [(0.0, LOOK_STEPS // WINDOW - 1), (0.1, 24)])
def test_looks_that_cost_much_are_rare(look_s: float, windows: int) -> None:
    """A look of a whole step's time, of which a hundredth may be spent: once in a hundred steps."""
    ratios = prepared(AutoRatio())
    gains = [0.1 + 0.01 * place for place in range(len(AutoRatio().ratios))]
    ratios.learn([[*gains, 0.1]], [None], [WAY], [0.1])
    assert ratios.moved(seen(*gains, 0.1, look_s=look_s), [WAY], WINDOW, SHARE, 0) == []
    assert windows_until_a_look(ratios) == windows


@pytest.mark.parametrize(("window", "looks"), [(3, [False, False, True]), (24, [True] * 3)])
def test_looks_are_so_many_steps_apart_in_windows_of_any_length(window: int, looks: list[bool]) -> None:
    ratios = prepared(AutoRatio())
    gains = [0.1 + 0.01 * place for place in range(len(AutoRatio().ratios))]
    ratios.learn([[*gains, 0.1]], [None], [WAY], [0.1])
    ratios.moved(seen(*gains, 0.1), [WAY], WINDOW, SHARE, 0)
    found = []
    for _ in range(3):
        look = ratios.looking(True, True, window) is not None
        found.append(look)
        ratios.moved(seen(*gains, 0.1) if look else seen_nothing(), [WAY], window, SHARE, 0)
    assert found == looks


def test_of_the_rest_of_a_step_a_bucket_bears_its_part() -> None:
    ways = (WAY, Path("star", "ring"))
    goal, network = AutoRatio("pace"), Network(Formulas(1e-4, 1e-9, 4))
    buckets = [known_bucket(numel, goal.start, ways) for numel in (100_000, 900_000)]
    ratios = Ratios(goal, buckets, [Expected(bucket, network) for bucket in buckets], History())
    gains = [0.1 + 0.01 * place for place in range(len(goal.ratios))]
    ratios.learn([[*gains, 0.1]] * 2, [None] * 2, [WAY] * 2, [0.1] * 2)
    for seconds in (2.0, 1.0, -0.1):
        ratios.beside(seconds)
    borne: list[float] = []
    for number, chooser in enumerate(ratios._choosers):
        chooser.choose = lambda prices, dense_s, beside_s: borne.append(beside_s)  # type: ignore[method-assign]
        ratios.reconsider(0, number, "", None)
    assert borne == pytest.approx([0.1, 0.9])


def test_gains_that_moved_bring_a_rollout_but_not_too_soon() -> None:
    """A tenth of the steps may be spent on rollouts: after one of 15 steps there is none for 150."""
    goal = AutoRatio(gain="rollout")
    ratios = prepared(goal)
    assert ratios.rollout_due == "training begins"
    for ratio in goal.ratios:
        ratios.roll_out(ratio)
        for _ in range(5):
            ratios.record([Timing(0.0, 0.01, 0.0)], [(0.5,)])
    steps = 5 * len(goal.ratios)
    gains = tuple(0.3 + 0.1 * place for place in range(len(goal.ratios)))
    rolled = Agreed(((0.01,),) * steps, ((0.0,),) * steps, 0.1, 0.0, Took(), (gains,))
    assert ratios.take_rollout(10, rolled) == "training begins"
    assert ratios.rollout_due == ""
    ratios.reconsider(10, 0, "a test", None)
    for gain in (0.4, 0.4, 0.9, 0.9):  # the first ones say what is usual
        ratios.learn([(gain,)], [None], [WAY], [gain])
    for step, due in ((10 + 10 * steps - 1, False), (10 + 10 * steps, True)):
        ratios.moved(seen(0.9), [WAY], WINDOW, SHARE, step)
        assert bool(ratios.rollout_due) == due
    assert "the gain moved" in ratios.rollout_due
