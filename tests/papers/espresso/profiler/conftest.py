"""The profile of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.engines.inprocess import run_ranks
from tests.papers.espresso.profiler.profiled import settings, train
from tests.played_clock import nobody_watches as nobody_watches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a job of two hosts with two ranks each."""
    folder = tmp_path_factory.mktemp("profile")
    run_ranks(4, lambda engine: train(engine, settings(folder)) and None, hosts=(0, 0, 1, 1))
    return folder
