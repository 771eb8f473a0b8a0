"""Each test that takes a `case` runs with all of them, or with those of cases.where(); the tests of a case run one
after the other, on its one run."""

from __future__ import annotations

import pytest

from tests.conformance.cases import Case, cases, chosen, is_first
from tests.conformance.runs import Run, run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        found = chosen(metafunc.function, cases(metafunc.config.getoption("--whole-product")))
        metafunc.parametrize("case", found, indirect=True, ids=str, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """What another setting of a compressor may show is of the second level."""
    if not is_first(item.callspec.params if hasattr(item, "callspec") else {}):
        item.add_marker("level2")


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="session")
def ranks(case: Case) -> Run:
    """The run of a case, which no test may change."""
    return run(case)
