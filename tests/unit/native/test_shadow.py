"""A source folder without kernels before an installed copy on sys.path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hvd_compress import native
from hvd_compress.errors import ConfigError
from hvd_compress.native import module, shadow
from tests.installed import install

FILES = ("kernels.so",)


@pytest.mark.level1
def test_both_kinds_of_kernels_name_the_sources_the_installed_copy_and_the_ways_out(tmp_path: Path) -> None:
    installed = install(tmp_path)
    (installed.package / "libhvd_compress_cuda.so").touch()  # also where the tests run without one
    program = """
import torch
from hvd_compress import errors, native
from hvd_compress.native import cuda
for call in (lambda: native.topk(torch.ones(4), 2), cuda.load):
    try:
        call()
    except (errors.ConfigError, errors.UnsupportedError) as error:
        print(error)
"""
    lines = installed.run("-c", program).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "cannot be loaded" in line
        assert f"the source folder {installed.checkout}, where they were not built, shadows" in line
        assert f"the installed package {installed.package}:" in line
        for words in ("from another folder", "PYTHONPATH", "`pip install -e .`", "`make native`"):
            assert words in line
        assert "`pip install .`" not in line  # it is done, and changes nothing


def test_kernels_of_another_version_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __file__ = "/checkout/_native.so"

    monkeypatch.setitem(sys.modules, "hvd_compress._native", Old())
    monkeypatch.setattr(module, "compiled", type(module.compiled)())  # what was asked for before is known
    with pytest.raises(
        ConfigError, match=r"/checkout/_native\.so, were built for another version .* 'topk_workspace_bytes'"
    ):
        native.topk(torch.ones(4), 2)


def copy(folder: Path, *files: str) -> Path:
    """A package of the same name, with these files."""
    package = folder / "hvd_compress"
    package.mkdir(parents=True)
    for name in ("__init__.py", *files):
        (package / name).touch()
    return package


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources that run, and nothing else on sys.path."""
    package = copy(tmp_path / "sources")
    monkeypatch.setattr(shadow, "PACKAGE", package)
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    return package


def test_another_copy_with_kernels_is_named(sources: Path, tmp_path: Path) -> None:
    other = copy(tmp_path / "other", *FILES)
    sys.path.append(str(tmp_path / "other"))
    assert f"{sources}, where they were not built, shadows the installed package {other}" in shadow.remedy(FILES, "")


def test_sources_alone_are_to_be_built(sources: Path) -> None:
    assert shadow.remedy(FILES, "build them") == "build them"


def test_a_copy_without_kernels_either_helps_nobody(sources: Path, tmp_path: Path) -> None:
    copy(tmp_path / "other")
    sys.path.append(str(tmp_path / "other"))
    assert shadow.remedy(FILES, "build them") == "build them"


def test_kernels_that_are_there_and_cannot_be_loaded_are_no_shadow(sources: Path, tmp_path: Path) -> None:
    """Such as those that were built for another Python or torch: they are to be built anew."""
    copy(tmp_path / "other", *FILES)
    sys.path.append(str(tmp_path / "other"))
    (sources / FILES[0]).touch()
    assert shadow.remedy(FILES, "build them") == "build them"
