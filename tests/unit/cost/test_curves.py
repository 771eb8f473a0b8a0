"""Curves: interpolation, extrapolation, and what they are as JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.errors import ConfigError, UnsupportedError
from tests.unit.cost.predicting import predicted


def test_curves_are_exact_where_latency_and_bandwidth_are_all_there_is():
    costs = Formulas(1e-4, 4e-7, 3)
    for verb in ("alltoall", "allgather"):
        curve = Curve((1024, 65_536), tuple(costs.seconds(verb, "auto", size) for size in (1024, 65_536)))
        for size in (1, 512, 1024, 9_999, 65_536, 1 << 24):
            assert curve.seconds(size) == pytest.approx(costs.seconds(verb, "auto", size))


def test_between_points_and_beyond_them_lines_go_on():
    curve = Curve((100, 200, 400), (1.0, 1.5, 3.5))
    assert [curve.seconds(size) for size in (100, 150, 200, 300, 400)] == [1.0, 1.25, 1.5, 2.5, 3.5]
    assert (curve.seconds(50), curve.seconds(1400)) == (0.75, 13.5)


def test_curves_never_fall_below_zero_and_one_point_is_level():
    assert Curve((1024, 2048), (1e-3, 3e-3)).seconds(64) == 0.0
    assert Curve((1024,), (1e-3,)).seconds(1 << 20) == 1e-3


def test_noise_is_pooled_into_a_curve_that_never_falls():
    curve = Curve.through({100: 1.0, 200: 8.0, 400: 2.0, 800: 16.0})
    assert curve.times == (1.0, pytest.approx(4.0), pytest.approx(4.0), pytest.approx(16.0))


@given(st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e3), min_size=1, max_size=8), st.data())
def test_more_bytes_never_take_less_time(measured, data):
    curve = Curve.through(measured)
    smaller, larger = sorted(data.draw(st.tuples(st.integers(0, 2 * 10**9), st.integers(0, 2 * 10**9))))
    assert 0 <= curve.seconds(smaller) <= curve.seconds(larger) * (1 + 1e-12) < math.inf


def exact(n: int, alpha: float, beta: float) -> Curves:
    """Curves that follow the formulas, so that what is fitted is known."""
    keys = [("allreduce", "ring"), ("allreduce", "tree"), ("broadcast", "pipeline_16k"), ("allgather", "bruck")]
    costs = Formulas(alpha, beta, n)
    sizes = (1024, 65_536, 1_048_576)
    return Curves(n, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in keys})


def test_curves_price_candidates_as_formulas_do():
    curves, costs = exact(8, 1e-3, 8e-9), Formulas(1e-3, 8e-9, 8)
    candidate = Path("artopk", "tree", "pipeline_16k")
    k = 262_144  # 1 MiB of each: a size on the grid
    measured, formula = (predicted(candidate, 100 * k, 0.01, prices) for prices in (curves, costs))
    assert measured.seconds == pytest.approx(formula.seconds)
    with pytest.raises(
        UnsupportedError, match="broadcast binomial was not measured; there are curves of allreduce ring"
    ):
        predicted(Path("artopk", "tree", "binomial"), 100, 0.01, curves)


def test_json_and_back():
    curves = exact(4, 1e-3, 8e-9)
    assert Curves.from_json(4, json.loads(json.dumps(curves.to_json()))) == curves


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [3],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [1, 2], "seconds": [1.0]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [2, 1], "seconds": [1.0, 2.0]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [1, 2], "seconds": [2.0, 1.0]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [1], "seconds": [-1.0]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [1], "seconds": [math.nan]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": [1, 2], "seconds": [1.0, math.inf]}],
        [{"verb": "allreduce", "algorithm": "ring", "bytes": ["x"], "seconds": [1.0]}],
    ],
)
def test_what_is_no_curve_is_refused(rows):
    with pytest.raises(ConfigError, match=r"not (a curve|curves)"):
        Curves.from_json(4, rows)
