"""Settings of all tests, and the clock of those whose outcome follows from what something took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.clock import Clock

# Machines are noisy, so no example may fail for being slow; ranks must draw the same examples.
settings.register_profile("hvd_compress", deadline=None, derandomize=True)
settings.load_profile("hvd_compress")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-product", action="store_true", help="tests/conformance: every combination, not a covering of pairs"
    )


LEVEL2_FOLDERS = ("jobs", "unit/docs", "unit/integrations", "unit/tools")
"""Of these the tests are of the second level, but for those that are marked `level1`: they start processes."""


def pytest_itemcollected(item: pytest.Item) -> None:
    folder = item.path.parent.relative_to(Path(__file__).parent).as_posix()
    if folder.startswith(LEVEL2_FOLDERS) and item.get_closest_marker("level1") is None:
        item.add_marker("level2")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes only where in-process ranks communicate."""
    from tests.clock import hold  # imports torch, which not all tests need

    return hold(monkeypatch)
