"""What set-up shows of a long command, and of one that fails."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    return importlib.import_module("progress")


def test_success_is_one_title_and_its_time(
    progress: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.run("greeting", [sys.executable, "-c", "print('hello')"], tmp_path / "log")
    assert "greeting: done in 0:0" in capsys.readouterr().out
    assert "hello\n" in (tmp_path / "log").read_text()


def test_failure_shows_the_end_of_the_log(progress: ModuleType, tmp_path: Path) -> None:
    program = "print(*range(1000), sep='\\n', flush=True); raise SystemExit(3)"
    with pytest.raises(progress.StepError, match=r"counting failed \(exit code 3\)") as error:
        progress.run("counting", [sys.executable, "-c", program], tmp_path / "log")
    shown = str(error.value).splitlines()
    assert shown[-1] == "999"
    assert "0" not in shown
