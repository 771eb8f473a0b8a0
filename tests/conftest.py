"""Settings of all tests, and the clock of those whose outcome follows from what something took."""

from __future__ import annotations

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes only where in-process ranks communicate."""
    from tests.clock import hold  # imports torch, which not all tests need

    return hold(monkeypatch)
