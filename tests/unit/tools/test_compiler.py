"""A compiler that is missing, or too old for what is to be built, is refused in one sentence."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    monkeypatch.delenv("CXX", raising=False)
    return importlib.import_module("compiler")


@pytest.mark.parametrize("standard", [17, 20])
def test_this_machine_has_one(compiler: ModuleType, standard: int) -> None:
    compiler.require(standard, "this test")


def test_none(compiler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(compiler.progress.StepError, match=r"no C\+\+ compiler: no-such-compiler .* apt install g"):
        compiler.require(17, "this test")


def test_too_old(compiler: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "old-c++"
    old.write_text("#!/bin/sh\necho \"unrecognized command-line option '$1'\" >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", f"{old} -pipe")
    with pytest.raises(
        compiler.progress.StepError, match=r"Horovod needs a C\+\+20 compiler, and .*old-c\+\+ cannot .*set CXX"
    ):
        compiler.require(20, "Horovod")
