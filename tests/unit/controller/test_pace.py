"""The ratio by the target "pace": the most gain a second of training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.ratio import RatioChooser

GOAL = AutoRatio("pace", low=0.01, high=1.0)


def chooser_that_knows(gain: Callable[[float], float]) -> RatioChooser:
    chooser = RatioChooser(GOAL)
    chooser.learn([gain(ratio) for ratio in GOAL.ratios])
    return chooser


def changes(chooser: RatioChooser, *known: object, **more: float) -> bool:
    """Let it choose by what is `known`; return whether it took another ratio."""
    before = chooser.ratio
    chooser.choose(*known, **more)
    return chooser.ratio != before


def prices(seconds_of_all: float) -> dict[float, tuple[float, float]]:
    """A network on which `seconds_of_all` is what all elements take, and pairs take twice as long."""
    return {ratio: (0.0, 2 * ratio * seconds_of_all) for ratio in GOAL.ratios}


def test_little_is_sent_where_the_network_is_slow_and_everything_where_it_is_fast() -> None:
    slow, fast = (chooser_that_knows(lambda ratio: ratio**0.5) for _ in range(2))
    slow.choose(prices(10.0), 10.0, beside_s=0.05)
    fast.choose(prices(0.01), 0.01, beside_s=0.05)
    assert slow.ratio == GOAL.ratios[0]
    assert slow.pays
    assert fast.ratio == 1.0
    assert not fast.pays
    assert "the pace" in slow.reason


@pytest.mark.parametrize("beside_s", [0.0, 0.01, 0.1, 1.0])
def test_it_is_the_ratio_that_gains_most_a_second(beside_s: float) -> None:
    def gain(ratio: float) -> float:
        return ratio**0.3

    chooser, dense_s = chooser_that_knows(gain), 0.2
    chooser.choose(prices(dense_s), dense_s, beside_s)
    pace = {
        ratio: gain(ratio) / (beside_s + seconds) if seconds < dense_s else 1 / (beside_s + dense_s)
        for ratio, (_, seconds) in prices(dense_s).items()
    }
    assert pace[chooser.ratio] >= max(pace.values()) / 1.1


def test_a_ratio_that_is_nearly_the_best_stays() -> None:
    chooser = chooser_that_knows(lambda ratio: ratio**0.3)
    assert changes(chooser, prices(1.0), 1.0, beside_s=0.01)
    assert not changes(chooser, prices(1.05), 1.05, beside_s=0.01)
    assert changes(chooser, prices(0.001), 0.001, beside_s=0.01)
