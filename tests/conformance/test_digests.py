"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py)."""

from __future__ import annotations

import pytest

from tests import digests

RECORDED = digests.recorded()["in-process"]
SIZES = (1, 2, 3, 4)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each request with each dtype, the numbers of ranks in turn; in the whole product with each of them."""
    if "size" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole-product")
        found = [
            (name, size)
            for number, name in enumerate(digests.cases())
            for size in (SIZES if whole else (SIZES[number % len(SIZES)],))
        ]
        metafunc.parametrize(("name", "size"), found)


def test_parameters_after_twenty_steps_are_those_that_were_recorded(name: str, size: int) -> None:
    assert digests.in_process(*digests.cases()[name], size) == RECORDED[f"{name}, {size}"]


def test_every_digest_belongs_to_a_case() -> None:
    assert RECORDED.keys() == {f"{name}, {size}" for name in digests.cases() for size in SIZES}
