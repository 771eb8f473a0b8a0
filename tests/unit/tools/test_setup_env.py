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


def test_pip_is_given_the_oldest_torch_beside_a_range(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would keep or download one that is refused minutes later."""
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup_env, "_pip", lambda title, *arguments: given.append(arguments))
    for name in ("_check_machine", "_install_horovod"):
        monkeypatch.setattr(setup_env, name, lambda: None)
    monkeypatch.setattr(setup_env, "_venv_fits", lambda: True)
    for name in ("LOG", "READY"):
        monkeypatch.setattr(setup_env, name, Path("/nowhere"))
    setup_env._set_up("torch<2.9")
    assert ("torch<2.9", "torch>=2.4") in given
