"""Curves of profiles: interpolation, extrapolation, and what is fitted to them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.profiler.curves import LogCurve, fit


def test_between_two_sizes_the_logarithms_are_linear():
    curve = LogCurve((100, 10_000), (1.0, 4.0))
    assert curve.seconds(1000) == pytest.approx(2.0)
    assert [curve.seconds(size) for size in (100, 10_000)] == [1.0, pytest.approx(4.0)]


def test_beyond_the_grid_latency_below_and_bandwidth_above():
    curve = LogCurve((100, 200, 400), (1.0, 1.5, 3.5))
    assert curve.seconds(0) == curve.seconds(1) == 1.0
    assert curve.seconds(1400) == pytest.approx(3.5 + 1000 * 0.01)
    pooled = LogCurve((100, 200, 400), (1.0, 4.0, 4.0))
    assert pooled.seconds(700) == pytest.approx(4.0 + 300 * 0.01), "the whole curve's slope, where the last is flat"
    assert LogCurve((100,), (1.0,)).seconds(10**6) == 1.0


@given(st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e3), min_size=1, max_size=8), st.data())
def test_more_bytes_never_take_less_time(measured, data):
    curve = LogCurve.through(measured)
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
    assert fit(exact(4, alpha, beta)) == (pytest.approx(alpha, abs=1e-9), pytest.approx(beta, abs=1e-13))


def test_the_fit_is_never_negative():
    falling = {("allreduce", "ring"): Curve((1024, 2048), (1.0, 1.0)), ("broadcast", "binomial"): Curve((8,), (9.0,))}
    alpha, beta = fit(Curves(4, falling))
    assert alpha > 0
    assert beta == 0.0
    assert fit(Curves(4, {("allreduce", "auto"): Curve((8,), (1.0,))})) == (0.0, 0.0)
    assert fit(Curves(1, {("allreduce", "ring"): Curve((8,), (1.0,))})) == (0.0, 0.0)


def test_where_nothing_is_forced_all_points_may_count():
    costs, sizes = Formulas(1e-3, 8e-9, 4), (1024, 65_536)
    curves = Curves(
        4, {("allgather", "auto"): Curve(sizes, tuple(costs.seconds("allgather", "auto", s) for s in sizes))}
    )
    assert fit(curves) == (0.0, 0.0)
    assert fit(curves, forced=False) == (pytest.approx(1e-3), pytest.approx(8e-9))
