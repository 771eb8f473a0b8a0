"""Two times differ by a factor and by seconds, or not at all."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller.differ import differ, times_apart


@pytest.mark.parametrize(
    ("a_s", "b_s", "told_apart"),
    [
        (0.010, 0.021, True),
        (0.021, 0.010, True),
        (0.010, 0.019, False),  # not twice as long
        (0.001, 0.0025, False),  # 1.5 ms are no difference
        (0.0, 0.1, True),
        (0.0, 0.0, False),
        (math.nan, 0.1, False),
        (0.1, math.nan, False),
    ],
)
def test_both_must_be_exceeded(a_s: float, b_s: float, told_apart: bool) -> None:
    assert differ(a_s, b_s, 2.0, 0.002) == told_apart


def test_times_apart_does_not_depend_on_the_order() -> None:
    assert times_apart(0.1, 0.4) == times_apart(0.4, 0.1) == pytest.approx(4.0)
    assert math.isfinite(times_apart(0.0, 1.0))
