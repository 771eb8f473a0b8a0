"""What `make wheel` refuses: a wheel that lacks a file, holds one too many, or is tagged for any machine."""

from __future__ import annotations

import importlib
import platform
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = ("__init__.py", "_native.pyi", "py.typed", "netlab/__init__.py", "netlab/schedules/c1.csv")
NATIVE = f"_native.{sys.implementation.cache_tag}-x86_64-linux-gnu.so"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
MACHINE = platform.machine()
NAME = f"hvd_compress-0.1.0-{TAG}-{TAG}-manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}.whl"
RELAY = "netlab/netlab_relay"
METADATA = """Metadata-Version: 2.4
Name: hvd_compress
Requires-Dist: torch>=2.4
Requires-Dist: numpy
Provides-Extra: plot
Requires-Dist: matplotlib; extra == "plot"
"""
Pack = Callable[..., Path]


@pytest.fixture
def build_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program, for a checkout with few sources, on a machine without nvcc."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    build_wheel = importlib.import_module("build_wheel")
    monkeypatch.setattr(build_wheel, "ROOT", tmp_path)
    monkeypatch.setattr(build_wheel.build_cuda, "find_nvcc", lambda: None)
    for name in SOURCES:
        (tmp_path / "hvd_compress" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hvd_compress" / name).write_text("")
    return build_wheel


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    def pack(*files: str, name: str = NAME, relay_mode: int = 0o755) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            for file in files:
                entry = zipfile.ZipInfo(f"hvd_compress/{file}")
                entry.external_attr = (relay_mode if file == RELAY else 0o644) << 16
                wheel.writestr(entry, "")
            wheel.writestr("hvd_compress-0.1.0.dist-info/METADATA", METADATA)
        return tmp_path / name

    return pack


def test_a_complete_wheel(build_wheel: ModuleType, pack: Pack) -> None:
    build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY), TAG)


@pytest.mark.parametrize("missing", ["netlab/__init__.py", "py.typed", "netlab/schedules/c1.csv", NATIVE, RELAY])
def test_a_file_that_is_missing(build_wheel: ModuleType, pack: Pack, missing: str) -> None:
    files = {*SOURCES, NATIVE, RELAY} - {missing}
    name = missing.replace(NATIVE, "_native.so")
    with pytest.raises(build_wheel.progress.StepError, match=rf"lacks \['hvd_compress/{name}'\]"):
        build_wheel.require_complete(pack(*files), TAG)


def test_a_module_of_an_earlier_build(build_wheel: ModuleType, pack: Pack) -> None:
    with pytest.raises(build_wheel.progress.StepError, match=r"holds \['hvd_compress/gone.py'\]"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, "gone.py"), TAG)


def test_a_library_that_was_copied_in(build_wheel: ModuleType, pack: Pack, tmp_path: Path) -> None:
    """Such as CUDA's runtime, or torch's libraries."""
    wheel = pack(*SOURCES, NATIVE, RELAY)
    with zipfile.ZipFile(wheel, "a") as content:
        content.writestr("hvd_compress.libs/libcudart-1234.so.13", "")
    with pytest.raises(build_wheel.progress.StepError, match=r"holds \['hvd_compress.libs/libcudart-1234.so.13'\]"):
        build_wheel.require_complete(wheel, TAG)


def test_cuda_kernels_are_there_where_nvcc_was(
    build_wheel: ModuleType, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheel.build_cuda, "find_nvcc", lambda: "/usr/bin/nvcc")
    with pytest.raises(build_wheel.progress.StepError, match=r"lacks \['hvd_compress/libhvd_compress_cuda\.so'\]"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY), TAG)
    build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, "libhvd_compress_cuda.so"), TAG)


def test_a_relay_that_cannot_be_executed(build_wheel: ModuleType, pack: Pack) -> None:
    with pytest.raises(build_wheel.progress.StepError, match="cannot be executed"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, relay_mode=0o644), TAG)


@pytest.mark.parametrize(
    "tag", ["py3-none-any", f"cp39-cp39-manylinux_2_17_{MACHINE}", f"{TAG}-{TAG}-any", f"{TAG}-{TAG}-linux_{MACHINE}"]
)
def test_a_tag_of_another_python_or_machine(build_wheel: ModuleType, pack: Pack, tag: str) -> None:
    with pytest.raises(build_wheel.progress.StepError, match="must be tagged"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, name=f"hvd_compress-0.1.0-{tag}.whl"), TAG)


def test_pythons_by_path_by_release_and_by_default(
    build_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert build_wheel.find_pythons("") == {Path(sys.executable): TAG}
    assert build_wheel.find_pythons(sys.executable) == {Path(sys.executable): TAG}
    release = "{}.{}".format(*sys.version_info)
    shim, kept = (
        tmp_path / "bin" / f"python{release}",
        tmp_path / "pyenv" / "versions" / f"{release}.1" / "bin" / "python",
    )
    for path in (shim, kept):
        path.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\necho pyenv: not installed >&2\nexit 127\n")
    shim.chmod(0o755)
    kept.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert build_wheel.find_pythons(release) == {kept: TAG}
    for missing in ("3.99", "/nowhere/python"):
        with pytest.raises(build_wheel.progress.StepError, match=f"there is no Python {missing}"):
            build_wheel.find_pythons(f"{release} {missing}")


@pytest.fixture
def try_wheel(build_wheel: ModuleType) -> ModuleType:
    return importlib.import_module("try_wheel")


def test_what_the_environment_gets_beside_torch(try_wheel: ModuleType, pack: Pack) -> None:
    wheel = pack(*SOURCES)
    assert try_wheel.dependencies(wheel) == ["numpy", "torch>=2.4"]
    assert try_wheel.extras(wheel) == ["plot"]


def test_an_environment_is_kept_until_it_would_differ(
    try_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[list[str]] = []
    monkeypatch.setattr(try_wheel.progress, "run", lambda title, command, *_: steps.append([*map(str, command)]))
    monkeypatch.setattr(try_wheel, "READY", tmp_path / "ready")
    default = tmp_path / "torch.txt"
    default.write_text("torch==2.15.0")
    monkeypatch.setattr(try_wheel.torch_version, "DEFAULT", default)
    python = Path(sys.executable)
    for torch, needed, made in (
        ("torch==2.15.0", ["numpy"], 2),
        ("torch==2.15.0", ["numpy"], 2),
        ("torch==2.15.0", ["numpy", "click"], 4),
        ("torch==2.4.1", ["numpy", "click"], 6),
        ("", ["numpy"], 8),
        ("", ["numpy"], 8),
    ):
        try_wheel.make_environment(python, torch, needed, tmp_path / "log")
        assert len(steps) == made
    assert steps[-1][-3:] == ["-r", str(default), "numpy"]
    default.write_text("torch==2.16.0")
    try_wheel.make_environment(python, "", ["numpy"], tmp_path / "log")
    assert len(steps) == 10


def test_which_torch_it_is_tried_with(try_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_REQUIREMENT", "")
    monkeypatch.delenv("WHEEL_TORCH", raising=False)
    assert try_wheel.torches() == [""]
    monkeypatch.setenv("TORCH_REQUIREMENT", "torch==2.15.0")
    assert try_wheel.torches() == ["torch==2.15.0"]
    monkeypatch.setenv("WHEEL_TORCH", "torch==2.4.1 torch==2.15.0")
    assert try_wheel.torches() == ["torch==2.4.1", "torch==2.15.0"]
    monkeypatch.setenv("WHEEL_TORCH", "torch==2.3.1")
    with pytest.raises(try_wheel.progress.StepError, match=r"older than 2\.4"):
        try_wheel.torches()
