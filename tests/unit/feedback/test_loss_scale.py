"""Residuals in the units of a gradient scaler."""

from __future__ import annotations

import math

import pytest

from hvd_compress.feedback.loss_scale import LossScale
from tests.harness import Scaler


class Scaled:
    """States that note by what they are multiplied."""

    def __init__(self) -> None:
        self.factors: list[float] = []

    def scale(self, factor: float) -> None:
        self.factors.append(factor)


def test_residuals_follow_the_scale_of_the_scaler() -> None:
    states, scaler = Scaled(), Scaler(1024.0)
    scale = LossScale(states)  # type: ignore[arg-type]
    scale.follow(scaler)
    scale.update()
    scaler.scale = 512.0
    scale.update()
    scale.update()
    assert (states.factors, scale.scale) == ([0.5], 512.0)


def test_residuals_of_a_checkpoint_wait_for_a_scaler_in_their_units() -> None:
    states = Scaled()
    scale = LossScale(states)  # type: ignore[arg-type]
    scale.scale = 1024.0  # as loaded
    scale.update()
    assert states.factors == []
    scale.follow(Scaler(256.0))
    scale.update()
    assert (states.factors, scale.scale) == ([0.25], 256.0)


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_scale_that_is_none_changes_nothing(value: float) -> None:
    states = Scaled()
    scale = LossScale(states)  # type: ignore[arg-type]
    scale.follow(scaler := Scaler(64.0))
    scaler.scale = value
    scale.update()
    assert (states.factors, scale.scale) == ([], 64.0)
