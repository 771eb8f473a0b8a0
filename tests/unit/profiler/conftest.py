"""Recorders of other tests, which nobody has closed yet, are none of a test's; and the profile of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.profiler import recorder
from tests.unit.profiler.profiled import settings, train

OWN = torch.autograd.backward
"""torch's: nothing has been watched when this file is read."""


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_watchers", [])
    monkeypatch.setattr(recorder, "_current", None)
    monkeypatch.setattr(torch.autograd, "backward", OWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a job of two hosts with two ranks each."""
    folder = tmp_path_factory.mktemp("profile")
    run_ranks(4, lambda engine: train(engine, settings(folder)) and None, hosts=(0, 0, 1, 1))
    return folder
