"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py)."""

from __future__ import annotations

import pytest

from tests import digests

RECORDED = digests.recorded()["in-process"]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", digests.cases())
def test_parameters_after_twenty_steps_are_those_that_were_recorded(name: str, size: int) -> None:
    assert digests.in_process(*digests.cases()[name], size) == RECORDED[f"{name}, {size}"]
