"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py)."""

from __future__ import annotations

import pytest

from tests import digests
from tests.conformance.cases import combinations

RECORDED = digests.recorded()["in-process"]
SIZES = (1, 2, 3, 4)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each request with each dtype and each number of ranks, or in the whole product with each pair of them."""
    if "size" in metafunc.fixturenames:
        known = digests.cases()
        requests, dtypes = (
            list(dict.fromkeys(parts)) for parts in zip(*(name.split(", ") for name in known), strict=True)
        )

        def is_recorded(request: str, dtype: str, size: int) -> bool:
            return f"{request}, {dtype}" in known

        found = combinations(metafunc.config.getoption("--whole-product"), is_recorded, requests, dtypes, SIZES)
        metafunc.parametrize(("name", "size"), [(f"{request}, {dtype}", size) for request, dtype, size in found])


def test_parameters_after_twenty_steps_are_those_that_were_recorded(name: str, size: int) -> None:
    assert digests.in_process(*digests.cases()[name], size) == RECORDED[f"{name}, {size}"]


def test_every_digest_belongs_to_a_case() -> None:
    assert RECORDED.keys() == {f"{name}, {size}" for name in digests.cases() for size in SIZES}
