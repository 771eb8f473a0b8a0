"""Recorders of other tests, which nobody has closed yet, are none of a test's."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.profiler import recorder


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_watchers", [])
    monkeypatch.setattr(torch.autograd, "backward", recorder._own)
