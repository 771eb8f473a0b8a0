"""Fixtures of sessions' tests: a pipeline of one rank, and a collective that does not return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hvd_compress.session import pipeline as pipeline_module
from hvd_compress.session.pipeline import Pipeline
from tests.unit.session.scripted import PATIENCE_S, Hanging, connected


@pytest.fixture
def pipeline() -> Pipeline:
    return connected(PATIENCE_S)


@pytest.fixture(autouse=True)
def kernels_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "KERNEL_LIMIT_S", PATIENCE_S)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()
