"""What is asked of a ratio that is chosen while training."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from hvd_compress.compressors import EFSign, TopK
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.errors import ConfigError, MissingPackageError
from hvd_compress.request.request import Request
from hvd_compress.torch import Compression


def test_what_is_asked_for_reaches_the_request() -> None:
    request = Compression.flexible(0.7, low=0.01, high=0.2, gain_change=0.2, solver="nsga2", layerwise=True)
    assert request.ratio == AutoRatio(0.7, 0.01, 0.2, 0.2, "curve", "nsga2")
    assert request.compressor == TopK(request.ratio.start, layerwise=True)
    assert (request.scheme, request.algorithm) == ("auto", "auto")
    assert 0.01 < request.ratio.start < 0.2


def test_the_lower_bound_depends_on_whether_a_gain_is_wanted() -> None:
    lows = [Compression.flexible(target).ratio.low for target in ("knee", "pace", (1, 1, 1), 0.5)]
    assert lows == [0.02, 0.02, 0.02, 0.001]
    assert Compression.flexible(0.5, low=0.02).ratio.low == 0.02
    assert Compression.flexible(high=0.005).ratio.ratios == (0.005,)


def test_three_kinds_of_targets() -> None:
    assert (AutoRatio().wanted_gain, AutoRatio().weights) == (None, (1.0, 1.0, 1.0))
    assert AutoRatio(0.5).wanted_gain == 0.5
    assert AutoRatio([0, 2, 1]).weights == (0, 2, 1)
    hash(AutoRatio([0, 2, 1]))


def test_candidates_are_many_where_they_are_read_and_few_where_they_are_trained() -> None:
    curve, rollout = AutoRatio(low=0.001), AutoRatio(low=0.001, gain="rollout")
    assert len(curve.ratios) > 40
    assert AutoRatio(gain="rollout").ratios == pytest.approx((0.02, 0.0447, 0.1), rel=1e-2)
    assert rollout.ratios == pytest.approx((0.001, 0.00316, 0.01, 0.0316, 0.1), rel=1e-2)
    for goal in (curve, rollout):
        assert goal.start in goal.ratios
        assert (goal.ratios[0], goal.ratios[-1]) == (0.001, 0.1)
        assert all(a < b for a, b in itertools.pairwise(goal.ratios))
    assert AutoRatio(low=0.01, high=0.01).ratios == (0.01,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "elbow"}, "unknown target 'elbow'"),
        ({"target": 1.5}, r"outside \(0, 1\]"),
        ({"target": 0.0}, r"outside \(0, 1\]"),
        ({"target": float("nan")}, r"outside \(0, 1\]"),
        ({"target": True}, "unknown target True"),
        ({"target": np.ones(3)}, "unknown target array"),
        ({"target": (1, 2)}, "three weights"),
        ({"target": (0, 0, 0)}, "three weights"),
        ({"target": (1, -1, 1)}, "three weights"),
        ({"target": ("a", 1, 1)}, "three weights"),
        ({"low": 0.0}, "bounds of the ratio"),
        ({"low": 1e-320}, "bounds of the ratio"),
        ({"low": 0.2}, "bounds of the ratio"),
        ({"high": 1.5}, "bounds of the ratio"),
        ({"high": "much"}, "high = 'much' must be a number"),
        ({"gain_change": 0.0}, "gain_change = 0.0 must be above 0"),
        ({"gain": "guess"}, "unknown gain 'guess'"),
        ({"solver": "annealing"}, "unknown solver"),
    ],
)
def test_what_has_no_meaning(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression.flexible(**arguments)


def test_a_gain_that_looks_like_a_ratio_is_asked_about() -> None:
    with pytest.warns(UserWarning, match=r"it is Compression\.topk\(ratio=0\.01\)") as warned:
        Compression.flexible(0.01)
    assert warned[0].filename == __file__


def test_nsga2_needs_pymoo_and_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymoo", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'hvd_compress\[paper\]'; or use solver='exact'"):
        Compression.flexible(solver="nsga2")
    Compression.flexible()


@pytest.mark.parametrize(
    ("compressor", "scheme", "algorithm"),
    [(TopK(0.1), "star", "auto"), (TopK(0.1), "auto", "ring"), (EFSign(), "auto", "auto")],
)
def test_a_ratio_is_chosen_together_with_the_way(compressor, scheme: str, algorithm: str) -> None:
    with pytest.raises(ConfigError, match="leave both at 'auto'"):
        Request(compressor, scheme, algorithm, ratio=AutoRatio())
