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


@pytest.mark.parametrize(("code", "ends"), [(0, None), (1, None), (130, 130), (-15, -15)])
def test_all_goes_on_without_a_horovod_that_does_not_build(
    setup_env: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    ends: int | None,
) -> None:
    monkeypatch.delenv("HVD_COMPRESS_HOROVOD", raising=False)
    monkeypatch.setattr(setup_env.progress, "call", lambda command: code)
    removed: list[str] = []
    monkeypatch.setattr(setup_env, "_pip_uninstall_horovod", lambda: removed.append("horovod"))
    if ends is None:
        setup_env._install_horovod()
    else:
        with pytest.raises(SystemExit) as caught:
            setup_env._install_horovod()
        assert caught.value.code == ends
    assert removed == ["horovod"] * (code == 1)
    assert ("continuing without it" in capsys.readouterr().out) == (code == 1)


def test_horovod_may_be_left_out(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_it = setup_env._fingerprint("torch")
    monkeypatch.setenv("HVD_COMPRESS_HOROVOD", "0")
    assert setup_env._fingerprint("torch") != with_it, "else nothing is done where it is installed"
    monkeypatch.setattr(setup_env.progress, "call", lambda command: pytest.fail("it is built"))
    monkeypatch.setattr(setup_env, "_pip_uninstall_horovod", lambda: None)
    setup_env._install_horovod()
    assert capsys.readouterr().out == "Horovod is left out, as HVD_COMPRESS_HOROVOD=0 says\n"


def test_pip_is_given_the_oldest_torch_beside_a_range(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would keep or download one that is refused minutes later."""
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup_env, "_pip", lambda title, *arguments: given.append(arguments))
    monkeypatch.setattr(setup_env, "_install_horovod", lambda: None)
    setup_env._install_packages("torch<2.9")
    assert given[0][:2] == ("torch<2.9", "torch>=2.4")
