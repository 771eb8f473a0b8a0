"""The table of constants by which a path is chosen where nothing is measured."""

from __future__ import annotations

from statistics import mean
from types import ModuleType

import pytest

from hvd_compress.compressors.base import MESSAGE_BYTES
from hvd_compress.policies.fixed import MARGIN
from tests.benchmarks.scripts import load

SEVERAL = (3, 4, 6, 8, 12, 16)
"""With two ranks one path is the fastest on every network."""


@pytest.fixture
def arithmetic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("paths/arithmetic.py", monkeypatch)


def test_the_constant_in_use_is_seldom_wrong_and_loses_least_on_average(arithmetic: ModuleType) -> None:
    def found(constant: int) -> tuple[float, float]:
        choose, compressors = arithmetic.by_constant(constant), arithmetic.COMPRESSORS
        lost = [loss for n in SEVERAL for each in compressors for loss in arithmetic.losses(n, each, choose)]
        return mean(loss > arithmetic.WORSE for loss in lost), mean(lost)

    by_constant = {constant: found(constant) for constant in arithmetic.CONSTANTS}
    assert min(by_constant, key=lambda constant: by_constant[constant][0]) == MESSAGE_BYTES
    # On average the next smaller one loses 0.5 % less.
    assert by_constant[MESSAGE_BYTES][1] < 1.01 * min(loss for _, loss in by_constant.values())


@pytest.mark.parametrize("ranks", SEVERAL)
def test_what_is_measured_loses_no_more_than_the_margin(arithmetic: ModuleType, ranks: int) -> None:
    assert max(arithmetic.measured_losses(ranks)) <= 1 / (1 - MARGIN) + 1e-9
