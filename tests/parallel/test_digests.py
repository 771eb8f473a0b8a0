"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py), through the drop-in."""

from __future__ import annotations

import pytest

import hvd_compress.torch as hvd
from tests import digests
from tests.covering import completed
from tests.parallel.training import ENGINES

pytestmark = pytest.mark.level2


def chosen(whole: bool) -> list[tuple[str, str, str]]:
    """Return requests, dtypes and engines: all, or each dtype of a request with one engine, and each pair of values."""
    cases = {tuple(name.split(", ")): request for name, (request, _) in digests.cases().items()}
    legal = [(*case, engine) for case in cases for engine in ENGINES if digests.forcible(cases[case], engine)]
    turns = {value: n for values in (digests.REQUESTS, digests.DTYPES) for n, value in enumerate(values)}
    in_turn = [(*case, ENGINES[sum(turns[value] for value in case) % len(ENGINES)]) for case in cases]
    return legal if whole else completed([values for values in in_turn if values in legal], legal)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize(("request_name", "dtype", "engine"), chosen(metafunc.config.getoption("--whole-product")))


def test_parameters_after_twenty_steps_are_those_that_were_recorded(
    request_name: str, dtype: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded for three ranks: libraries add their values in an order of their own."""
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "600")
    name = f"{request_name}, {dtype}"
    assert digests.launched(*digests.cases()[name], engine) == digests.recorded()[engine][f"{name}, {hvd.size()}"]
