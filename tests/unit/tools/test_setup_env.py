"""Set-up refuses what cannot work before it downloads or builds anything."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    return importlib.import_module("setup_env")


def test_a_torch_that_is_too_old(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(setup_env.progress, "run", lambda title, *_: begun.append(title))
    with pytest.raises(setup_env.progress.StepError, match=r"torch 2\.1\.0 is not supported: it is older than 2\.4"):
        setup_env._set_up("torch==2.1.0")
    assert begun == []
