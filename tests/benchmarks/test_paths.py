"""The table of rules by which a path is chosen that is left open."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

from hvd_compress.compressors.base import MESSAGE_BYTES
from hvd_compress.policies.fixed import MARGIN
from tests.benchmarks.scripts import load

SEVERAL = (3, 4, 6, 8, 12, 16)
"""With two ranks one path is the fastest on every network."""


@pytest.fixture
def arithmetic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("paths/arithmetic.py", monkeypatch)


def losses(arithmetic: ModuleType, choose: Callable[[Any], Any]) -> list[float]:
    return [case.loss(choose(case)) for case in arithmetic.cases(SEVERAL)]


def test_the_constant_in_use_is_seldom_wrong_and_loses_least_on_average(arithmetic: ModuleType) -> None:
    by_constant = {each: losses(arithmetic, arithmetic.by_constant(each)) for each in arithmetic.CONSTANTS}
    wrong = {constant: mean(loss > arithmetic.WORSE for loss in lost) for constant, lost in by_constant.items()}
    assert min(wrong, key=wrong.__getitem__) == MESSAGE_BYTES
    # On average the next smaller one loses 0.5 % less.
    assert mean(by_constant[MESSAGE_BYTES]) < 1.01 * min(mean(lost) for lost in by_constant.values())


def test_what_is_measured_loses_no_more_than_the_margin(arithmetic: ModuleType) -> None:
    assert max(losses(arithmetic, arithmetic.measured)) <= 1 / (1 - MARGIN) + 1e-9


def test_a_row_holds_the_share_of_cases_that_lose_and_the_mean_and_the_worst_loss(arithmetic: ModuleType) -> None:
    """With 4 ranks and hardly any latency an all-gather takes twice as long, for twice the bytes."""
    small, large = (
        arithmetic.Case(4, arithmetic.BlockQuantizer(4), nbytes, 1e-9, 1e8) for nbytes in (1 << 20, 1 << 26)
    )
    table = arithmetic.table("ranks", ["16 KiB", "256 KiB"], {"4": [small, large]})
    assert table.splitlines()[-1] == "| 4 | 0%, 1.00, 1.00 | 50%, 1.50, 2.00 |"
