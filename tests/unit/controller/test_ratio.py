"""The ratio of one bucket: which one, when it stays, and when it is time to ask again."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.controller.chooser import Choice
from hvd_compress.controller.expected import Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.kernels import Kernels
from hvd_compress.controller.network import Network
from hvd_compress.controller.ratio import RatioChooser
from hvd_compress.controller.ratios import Ratios
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.events.history import History
from tests.controlled import known_bucket

DEAR = math.inf
"""What no compression takes where it is out of the question."""


def chooser(target: object = "knee", steepness: float = 8.0, **arguments: object) -> RatioChooser:
    made = RatioChooser(AutoRatio(target, **{"low": 0.001, **arguments}))
    made.learn(gains(made, steepness))
    return made


def changes(chooser: RatioChooser, *known: object, **more: float) -> bool:
    """Let it choose by what is `known`; return whether it took another ratio."""
    before = chooser.ratio
    chooser.choose(*known, **more)
    return chooser.ratio != before


def gains(of: RatioChooser, steepness: float) -> list[float]:
    return [1 - math.exp(-steepness * ratio**0.5) for ratio in of._goal.ratios]


def prices(of: RatioChooser, per_ratio_s: float) -> dict[float, tuple[float, float]]:
    return {ratio: (0.01, 0.002 + per_ratio_s * ratio) for ratio in of._goal.ratios}


def test_a_wanted_gain_is_reached_with_as_little_as_does_it() -> None:
    ratio = chooser(0.5)
    assert changes(ratio, prices(ratio, 1.0), DEAR)
    chosen = ratio._goal.ratios.index(ratio.ratio)
    assert ratio.gains[chosen] >= 0.5 > ratio.gains[chosen - 1]
    assert "gain 0.5 wanted" in ratio.reason


def test_weights_say_what_counts() -> None:
    found = {}
    for name, weights in (("time", (1, 1, 0)), ("gain", (0, 0, 1)), ("knee", "knee")):
        ratio = chooser(weights)
        ratio.choose(prices(ratio, 1.0), DEAR)
        found[name] = ratio.ratio
    assert found["time"] == 0.001
    assert found["gain"] == 0.1
    assert found["time"] < found["knee"] < found["gain"]


def test_a_time_that_hardly_depends_on_the_ratio_has_no_say() -> None:
    """A tenth of a millisecond of noise over the whole grid, once upwards and once downwards."""
    chosen = []
    for slope in (1e-3, -1e-3):
        ratio = chooser()
        noisy = {r: (0.01 + slope * (r - 0.05), seconds) for r, (_, seconds) in prices(ratio, 1.0).items()}
        ratio.choose(noisy, DEAR)
        chosen.append(ratio.ratio)
    assert chosen[0] == chosen[1]


def test_it_stays_where_another_is_hardly_better_and_goes_where_one_is_much_better() -> None:
    ratio = chooser()
    ratio.choose(prices(ratio, 1.0), DEAR)
    first = ratio.ratio
    assert not changes(ratio, prices(ratio, 1.05), DEAR)
    ratio.learn(gains(ratio, 8.3), weight=1.0)
    assert not changes(ratio, prices(ratio, 1.0), DEAR)
    assert ratio.ratio == first
    ratio.learn(gains(ratio, 60.0), weight=1.0)
    assert changes(ratio, prices(ratio, 1.0), DEAR)
    assert ratio.ratio < first


def test_noise_does_not_make_it_flap() -> None:
    """Gains and times that wobble by 3 %: after the first choice there is hardly another."""
    for target in ("knee", 0.5):
        ratio, changed = chooser(target), 0
        ratio.choose(prices(ratio, 1.0), DEAR)
        for step in range(50):
            wobble = 1 + 0.03 * math.sin(7.0 * step)
            ratio.learn(gains(ratio, 8.0 * wobble))
            changed += changes(ratio, prices(ratio, 1.0 / wobble), DEAR)
        assert changed <= 3, target


def test_a_ratio_that_takes_longer_than_no_compression_is_no_compromise() -> None:
    ratio = chooser()
    ratio.choose(prices(ratio, 1.0), DEAR)
    free, dense_s = ratio.ratio, 0.012 + 0.004
    other = chooser()
    other.choose(prices(other, 1.0), dense_s)
    assert sum(prices(other, 1.0)[other.ratio]) < dense_s
    assert other.ratio < free
    assert other.pays
    other.choose(prices(other, 1.0), 0.001)
    assert not other.pays
    assert "to send everything is expected to take less" in other.reason


def test_who_wants_gain_gets_it_although_it_does_not_pay() -> None:
    """No compression, which is faster then, gains more: the choice of the way will find that out."""
    ratio = chooser(0.5)
    ratio.choose(prices(ratio, 1.0), 0.0121)
    assert ratio.gain >= 0.5
    assert not ratio.pays


def test_it_asks_again_when_the_gain_has_moved_by_more_than_was_allowed() -> None:
    ratio = chooser(gain_change=0.1)
    ratio.choose(prices(ratio, 1.0), DEAR)
    ratio.learn([0.95 * gain for gain in ratio.gains], weight=1.0)
    assert not ratio.moved
    ratio.learn([0.9 * gain for gain in ratio.gains], weight=1.0)
    assert ratio.moved
    ratio.choose(prices(ratio, 1.0), DEAR)
    assert not ratio.moved


def test_after_a_rollout_what_is_sent_is_compared_with_what_was_sent_first() -> None:
    """Not with the gain of the rollout: residuals go on growing after it."""
    ratio = chooser(gain="rollout", gain_change=0.1)
    ratio.choose(prices(ratio, 1.0), DEAR)
    assert not ratio.moved
    ratio.watch(ratio.gain / 3)
    assert not ratio.moved
    ratio.watch(math.nan)
    assert not ratio.moved
    for _ in range(4):
        ratio.watch(ratio.gain / 2)
    assert ratio.moved


def test_gains_that_are_not_finite_are_forgotten() -> None:
    ratio = RatioChooser(AutoRatio())
    ratio.learn([math.nan] * len(ratio._goal.ratios))
    assert ratio.gains == ()
    ratio.learn(gains(ratio, 8.0))
    before = ratio.gains
    ratio.learn([*before[:-1], math.inf])
    assert ratio.gains == before


@pytest.mark.parametrize("target", ["knee", 0.5, (1, 2, 1)])
def test_both_solvers_find_the_same_within_a_step(target: object) -> None:
    places = []
    for solver in ("exact", "nsga2"):
        ratio = chooser(target, solver=solver)
        ratio.choose(prices(ratio, 1.0), DEAR)
        places.append(ratio._goal.ratios.index(ratio.ratio))
    assert abs(places[0] - places[1]) <= 1


def test_kernels_are_expected_to_take_what_is_measured_nearby() -> None:
    kernels = Kernels()
    assert kernels.seconds("star", 0.01) == 0.0
    kernels.note("star", 0.01, 0.010)
    kernels.note("star", 0.01, 0.012)
    assert kernels.seconds("star", 0.5) == 0.010
    assert kernels.seconds("allgather", 0.01) == 0.010
    assert kernels.seconds("dense", 1.0) == 0.0
    kernels.note("star", 0.03, 0.014)
    assert kernels.seconds("star", 0.02) == pytest.approx(0.012)
    assert (kernels.seconds("star", 0.001), kernels.seconds("star", 0.1)) == (0.010, 0.014)


def test_what_was_measured_corrects_what_is_expected_until_the_network_changes() -> None:
    ways = (Path("dense", "ring"), Path("allgather"), Path("star", "tree", "binomial"))
    network = Network(Formulas(0.001, 8e-9, 8))
    expected = Expected(known_bucket(10**6, 0.01, ways), network)
    (before,) = expected.prices((0.01,)).values()
    dense_s = expected.dense_s
    fastest = expected.fastest(0.01)
    assert expected.seconds(fastest, 0.01) == pytest.approx(sum(before))
    expected.kernels.note(fastest.scheme, 0.01, 0.002)
    expected.learn({fastest: 0.002 + 2 * before[1], ways[0]: 0.5 * dense_s}, lambda way: 0.01)
    assert expected.prices((0.01,))[0.01] == pytest.approx((0.002, 2 * before[1]))
    assert expected.dense_s == 0.5 * dense_s
    expected.learn({fastest: 50.0}, lambda way: 0.01)  # a rank was away: that is not the network
    assert expected.prices((0.01,))[0.01][1] <= 4.01 * before[1]
    expected.renew(network)
    assert expected.prices((0.01,))[0.01] == pytest.approx((0.002, before[1]))
    assert expected.dense_s == dense_s


def test_without_a_dense_way_there_is_no_bound() -> None:
    expected = Expected(
        known_bucket(1000, 0.01, (Path("allgather"),), torch.float16), Network(Formulas(0.001, 1e-9, 2))
    )
    assert expected.dense_s == math.inf


def test_steps_without_compression_say_nothing_of_what_a_compressed_one_gains() -> None:
    """Nothing is left over from them, so the next gradient alone gains more than one that follows upon others."""
    ways = (Path("dense"), Path("star"))
    bucket = known_bucket(1000, 0.01, ways)
    ratios = Ratios(AutoRatio(0.5), [bucket], [Expected(bucket, Network(Formulas(1e-3, 1e-8, 4)))], History())
    dense, star = (Choice(way, 0.01, 0.01, "") for way in ways)
    count = len(AutoRatio(0.5).ratios)
    ratios.learn([(0.6,) * count + (0.6,)], [dense], ways[:1], [math.nan])  # the first ones are all there is
    assert not ratios.waiting
    ratios.reconsider(0, 0, "gains are known", star)
    ratios.learn([(0.9,) * count + (0.9,)], [dense], ways[:1], [math.nan])
    assert ratios._choosers[0].gain == pytest.approx(0.6)
    ratios.learn([(0.9,) * count + (0.9,)], [star], ways[1:], [math.nan])
    assert ratios._choosers[0].gain == pytest.approx(0.75)


def test_where_the_exchange_is_little_of_a_step_more_is_sent() -> None:
    found = []
    for beside_s in (0.0, 0.05, 0.5, 5.0):
        ratio = chooser(low=0.01)
        ratio.choose(prices(ratio, 1.0), DEAR, beside_s)  # from 12 to 102 ms
        found.append(ratio.ratio)
    assert found[0] == found[1]  # the range of the exchange's times is more than that
    assert found[1] < found[2] < found[3] <= 0.1
