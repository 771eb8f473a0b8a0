"""Which torch set-up takes, and with which C++ standard it builds what uses torch's headers."""

from __future__ import annotations

import importlib
import re
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("torch_version")


def headers(tools: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, release: str, text: str) -> None:
    """Let a torch of that release be installed, with one header."""
    header = folder / tools.HEADER
    header.parent.mkdir(parents=True)
    header.write_text(text)
    monkeypatch.setattr(tools, "version", lambda name: release)
    monkeypatch.setattr(tools, "find_spec", lambda name: ModuleSpec(name, None, origin=str(folder / "__init__.py")))


@pytest.mark.parametrize(("asked", "standard"), [("201703L", 17), ("202002L", 20), ("202302L", 23)])
def test_the_standard_is_the_one_that_the_headers_ask_for(
    tools: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str, standard: int
) -> None:
    text = f"#if !defined(_MSC_VER) && __cplusplus < {asked}\n#error no\n#endif\n"
    headers(tools, monkeypatch, tmp_path, "2.9.0", text)
    assert tools.cxx_standard() == standard


def test_the_installed_torch_says_its_standard(tools: ModuleType) -> None:
    assert tools.cxx_standard() in tools.STANDARDS.values()


def test_headers_that_do_not_say_are_refused(
    tools: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    headers(tools, monkeypatch, tmp_path, "3.0.0", "#if __cplusplus < 203001L\n")
    with pytest.raises(tools.progress.StepError, match=r"torch 3\.0\.0 is not supported: .*choose an older torch"):
        tools.cxx_standard()


def test_an_installed_torch_that_is_too_old_is_refused(
    tools: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    headers(tools, monkeypatch, tmp_path, "2.1.2+cpu", "#if __cplusplus < 201703L\n")
    with pytest.raises(tools.progress.StepError, match=r"torch 2\.1\.2\+cpu is not supported: it is older than 2\."):
        tools.cxx_standard()


@pytest.mark.parametrize(
    "requirement", ["torch==2.1.0", " torch == 1.13.1+cpu", "torch===2.0", "torch[opt]==2.1", "torch==2.1.*"]
)
def test_a_pin_that_is_too_old_is_refused_before_anything_is_downloaded(tools: ModuleType, requirement: str) -> None:
    with pytest.raises(tools.progress.StepError, match="is not supported") as refused:
        tools.require_supported_pin(requirement)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("requirement", ["torch", "torch>=2.4", "torch==2.13.0+cpu", "torch==2.15.0"])
def test_other_requirements_are_taken(tools: ModuleType, requirement: str) -> None:
    tools.require_supported_pin(requirement)


def test_readme_and_package_name_the_supported_range(tools: ModuleType) -> None:
    default, _ = re.findall(r"^torch==([\d.]+)", tools.DEFAULT.read_text(), re.MULTILINE)
    assert f"torch {tools.OLDEST} to {default.removesuffix('.0')}" in (ROOT / "README.md").read_text()
    assert f'"torch>={tools.OLDEST}"' in (ROOT / "pyproject.toml").read_text()
