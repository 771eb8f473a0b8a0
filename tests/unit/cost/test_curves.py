"""Curves: interpolation, extrapolation, and what is fitted to them."""

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


def test_between_two_sizes_the_logarithms_are_linear():
    curve = Curve((100, 10_000), (1.0, 4.0))
    assert curve.seconds(1000) == pytest.approx(2.0)
    assert [curve.seconds(size) for size in (100, 10_000)] == [1.0, pytest.approx(4.0)]


def test_beyond_the_grid_latency_below_and_bandwidth_above():
    curve = Curve((100, 200, 400), (1.0, 1.5, 3.5))
    assert curve.seconds(0) == curve.seconds(1) == 1.0
    assert curve.seconds(1400) == pytest.approx(3.5 + 1000 * 0.01)
    pooled = Curve((100, 200, 400), (1.0, 4.0, 4.0))
    assert pooled.seconds(700) == pytest.approx(4.0 + 300 * 0.01), "the whole curve's slope, where the last is flat"
    assert Curve((100,), (1.0,)).seconds(10**6) == 1.0


def test_noise_is_pooled_into_a_curve_that_never_falls():
    curve = Curve.through({100: 1.0, 200: 8.0, 400: 2.0, 800: 16.0})
    assert curve.times == (1.0, pytest.approx(4.0), pytest.approx(4.0), pytest.approx(16.0))


@given(st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e3), min_size=1, max_size=8), st.data())
def test_more_bytes_never_take_less_time(measured, data):
    curve = Curve.through(measured)
    smaller, larger = sorted(data.draw(st.tuples(st.integers(0, 2 * 10**9), st.integers(0, 2 * 10**9))))
    assert 0 < curve.seconds(smaller) <= curve.seconds(larger) * (1 + 1e-12) < math.inf


def exact(n: int, alpha: float, beta: float) -> Curves:
    """Curves that follow the formulas, so that what is fitted is known."""
    keys = [("allreduce", "ring"), ("allreduce", "tree"), ("broadcast", "pipeline_16k"), ("allgather", "bruck")]
    costs = Formulas(alpha, beta, n)
    sizes = (1024, 65_536, 1_048_576)
    return Curves(n, {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in keys})


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 8e-9), (0.02, 1.6e-7), (1e-5, 0.0), (0.0, 1e-9)])
def test_alpha_and_beta_are_found_again(alpha, beta):
    assert exact(4, alpha, beta).fit() == (pytest.approx(alpha, abs=1e-9), pytest.approx(beta, abs=1e-13))


def test_the_fit_is_never_negative():
    falling = {("allreduce", "ring"): Curve((1024, 2048), (1.0, 1.0)), ("broadcast", "binomial"): Curve((8,), (9.0,))}
    alpha, beta = Curves(4, falling).fit()
    assert alpha > 0
    assert beta == 0.0
    assert Curves(4, {("allreduce", "auto"): Curve((8,), (1.0,))}).fit() == (0.0, 0.0)


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
