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
NAME = f"hvd_compress-0.1.0-{TAG}-{TAG}-linux_{platform.machine()}.whl"
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
    build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY))


@pytest.mark.parametrize("missing", ["netlab/__init__.py", "py.typed", "netlab/schedules/c1.csv", NATIVE, RELAY])
def test_a_file_that_is_missing(build_wheel: ModuleType, pack: Pack, missing: str) -> None:
    files = {*SOURCES, NATIVE, RELAY} - {missing}
    name = missing.replace(NATIVE, "_native.so")
    with pytest.raises(build_wheel.progress.StepError, match=rf"lacks \['hvd_compress/{name}'\]"):
        build_wheel.require_complete(pack(*files))


def test_a_module_of_an_earlier_build(build_wheel: ModuleType, pack: Pack) -> None:
    with pytest.raises(build_wheel.progress.StepError, match=r"holds \['hvd_compress/gone.py'\]"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, "gone.py"))


def test_cuda_kernels_are_there_where_nvcc_was(
    build_wheel: ModuleType, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheel.build_cuda, "find_nvcc", lambda: "/usr/bin/nvcc")
    with pytest.raises(build_wheel.progress.StepError, match=r"lacks \['hvd_compress/libhvd_compress_cuda\.so'\]"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY))
    build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, "libhvd_compress_cuda.so"))


def test_a_relay_that_cannot_be_executed(build_wheel: ModuleType, pack: Pack) -> None:
    with pytest.raises(build_wheel.progress.StepError, match="cannot be executed"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, relay_mode=0o644))


@pytest.mark.parametrize("tag", ["py3-none-any", "cp39-cp39-linux_x86_64", f"{TAG}-{TAG}-any"])
def test_a_tag_of_another_python_or_machine(build_wheel: ModuleType, pack: Pack, tag: str) -> None:
    with pytest.raises(build_wheel.progress.StepError, match="must be tagged"):
        build_wheel.require_complete(pack(*SOURCES, NATIVE, RELAY, name=f"hvd_compress-0.1.0-{tag}.whl"))


def test_what_the_environment_gets_beside_torch(build_wheel: ModuleType, pack: Pack) -> None:
    wheel = pack(*SOURCES)
    assert build_wheel.dependencies(wheel) == ["numpy", "torch>=2.4"]
    assert build_wheel.extras(wheel) == ["plot"]


def test_an_environment_is_kept_until_it_would_differ(
    build_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(build_wheel.progress, "run", lambda title, *_: steps.append(title))
    monkeypatch.setattr(build_wheel, "READY", tmp_path / "ready")
    build_wheel.make_environment("torch==2.15.0", ["numpy"])
    assert len(steps) == 2
    build_wheel.make_environment("torch==2.15.0", ["numpy"])
    assert len(steps) == 2
    build_wheel.make_environment("torch==2.15.0", ["numpy", "click"])
    assert len(steps) == 4
