"""Each rank of the launcher runs these tests, in step, as those of tests/parallel."""

from __future__ import annotations

from tests.parallel.conftest import abandoned, hvd, nothing_left_behind, pytest_sessionfinish, small_settings

__all__ = ["abandoned", "hvd", "nothing_left_behind", "pytest_sessionfinish", "small_settings"]
