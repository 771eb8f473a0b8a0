"""What the package asks pip for: torch and small things alone; all else is an extra, which the errors name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hvd_compress.extras import PACKAGES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def test_dependencies_are_torch_and_small_things() -> None:
    assert names(PROJECT["dependencies"]) == {"torch", "numpy", "pydantic", "click", "rich"}
    assert {"torch>=2.4", "pydantic>=2"} <= set(PROJECT["dependencies"])


def test_the_extras_are_those_that_the_errors_name() -> None:
    assert set(EXTRAS) - {"dev"} == {package.extra for package in PACKAGES.values()}


@pytest.mark.parametrize("name", PACKAGES)
def test_an_extra_brings_the_package_whose_error_names_it(name: str) -> None:
    package = PACKAGES[name]
    if name != "horovod":
        assert package.name in names(EXTRAS[package.extra])


def test_no_extra_has_pip_build_horovod() -> None:
    """In an isolated environment, where it fails."""
    assert not any("horovod" in names(requirements) for requirements in EXTRAS.values())


def test_developers_get_every_extra() -> None:
    (own,) = (requirement for requirement in EXTRAS["dev"] if requirement.startswith("hvd_compress["))
    assert set(own[len("hvd_compress[") : -1].split(",")) == set(EXTRAS) - {"dev"}


def test_set_up_installs_what_the_package_and_its_extras_need() -> None:
    lines = [
        line for name in ("build.txt", "dev.txt") for line in (ROOT / "requirements" / name).read_text().split("\n")
    ]
    pinned = names([line for line in lines if "==" in line])
    needed = [*PROJECT["dependencies"], *(one for name, extra in EXTRAS.items() if name != "dev" for one in extra)]
    assert names(needed) - {"torch"} <= pinned


def test_no_text_names_an_extra_that_is_not_there() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("hvd_compress/**/*.py"),
    ]
    named = {
        extra
        for page in pages
        for listed in re.findall(r"(?:hvd_compress|'\.)\[([a-z,]+)\]", page.read_text())
        for extra in listed.split(",")
    }
    assert named <= set(EXTRAS)
