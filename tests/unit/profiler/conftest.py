"""Recorders of other tests, which nobody has closed yet, are none of a test's."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.profiler import recorder

OWN = torch.autograd.backward
"""torch's: nothing has been watched when this file is read."""


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_watchers", [])
    monkeypatch.setattr(recorder, "_current", None)
    monkeypatch.setattr(torch.autograd, "backward", OWN)
