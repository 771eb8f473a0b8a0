"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py), through the drop-in."""

from __future__ import annotations

import pytest

import hvd_compress.torch as hvd
from tests import digests
from tests.parallel.training import ENGINES

pytestmark = pytest.mark.level2

CASES = [
    (engine, name) for engine in ENGINES for name, case in digests.cases().items() if digests.forcible(case[0], engine)
]


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_parameters_after_twenty_steps_are_those_that_were_recorded(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded for three ranks: libraries add their values in an order of their own."""
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "600")
    request, dtype = digests.cases()[name]
    assert digests.launched(request, dtype, engine) == digests.recorded()[engine][f"{name}, {hvd.size()}"]
