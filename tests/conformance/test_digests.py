"""Fixed requests train to the same bits as when their digests were recorded (tests/digests.py)."""

from __future__ import annotations

import pytest

from tests import digests

RECORDED = digests.recorded()["in-process"]
SIZES = (1, 2, 3, 4)


def chosen() -> list[tuple[str, int]]:
    """Return each request with fp32 gradients, and again with one other dtype; numbers of ranks and dtypes in turn.

    Jobs of three processes compare each request with each dtype, over one engine or the other
    (tests/parallel/test_digests.py).
    """
    by_request: dict[str, list[str]] = {}
    for name in digests.cases():
        by_request.setdefault(name.split(", ")[0], []).append(name)
    found = [(names[0], SIZES[n % 4]) for n, names in enumerate(by_request.values())]
    more = [names[1:] for names in by_request.values() if len(names) > 1]
    return found + [(others[n % len(others)], SIZES[(n + n // 4) % 4]) for n, others in enumerate(more)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "size" in metafunc.fixturenames:
        whole = [(name, size) for name in digests.cases() for size in SIZES]
        metafunc.parametrize(("name", "size"), whole if metafunc.config.getoption("--whole-product") else chosen())


@pytest.mark.level2
def test_parameters_after_twenty_steps_are_those_that_were_recorded(name: str, size: int) -> None:
    assert digests.in_process(*digests.cases()[name], size) == RECORDED[f"{name}, {size}"]


def test_each_request_dtype_and_number_of_ranks_is_chosen() -> None:
    requests, dtypes = zip(*(name.split(", ") for name, _ in chosen()), strict=True)
    assert set(requests) == set(digests.REQUESTS)
    assert set(dtypes) == set(digests.DTYPES)
    assert {size for _, size in chosen()} == set(SIZES)
    assert len(chosen()) == len(set(chosen()))


def test_every_digest_belongs_to_a_case() -> None:
    assert RECORDED.keys() == {f"{name}, {size}" for name in digests.cases() for size in SIZES}
