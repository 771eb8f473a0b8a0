"""Which Horovod is built: for CPUs, or with NCCL; each with a wheel of its own in the cache."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    installer = importlib.import_module("install_horovod")
    monkeypatch.setattr(installer, "version", lambda name: f"({name})")
    return installer


def source(installer: ModuleType, folder: Path) -> Path:
    """Files that hold what the installer replaces in Horovod's, and nothing else."""
    for changes in (installer.SUBSTITUTIONS, installer.CPU_SUBSTITUTIONS, installer.GPU_SUBSTITUTIONS):
        for name, pairs in changes.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            present = file.read_text() if file.exists() else ""
            # What an earlier substitution brings in is not in Horovod's source.
            brought = "".join(new for group in installer.SUBSTITUTIONS.values() for new in group.values())
            file.write_text(present + "\n".join(old for old in pairs if old not in brought) + "\n")
    return folder


def test_cpu_and_nccl_have_wheels_of_their_own(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    cpu = installer._key()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert "nccl" not in cpu
    assert "-nccl(nvidia-nccl-cu13)-" in installer._key()


def test_nvcc_is_used_for_nccl_only(installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    cpu = source(installer, tmp_path / "cpu")
    installer._substitute(cpu, 20)
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    gpu = source(installer, tmp_path / "gpu")
    installer._substitute(gpu, 17)
    finder, kernels = "cmake/Modules/FindPytorch.cmake", "horovod/common/ops/cuda/CMakeLists.txt"
    assert (cpu / finder).read_text() == "False\n"
    assert (gpu / finder).read_text() == installer.CUDA_FOUND + "\n"
    assert "CUDA_STANDARD 11" in (cpu / kernels).read_text()
    assert "CUDA_STANDARD 17" in (gpu / kernels).read_text()
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        assert "set(CMAKE_CXX_STANDARD 20)" in (cpu / name).read_text()
        assert "set(CMAKE_CXX_STANDARD 17)" in (gpu / name).read_text()
    assert "nvidia" not in (cpu / "CMakeLists.txt").read_text()
    assert "nvidia/nccl/lib" in (gpu / "CMakeLists.txt").read_text()


def test_other_gpu_operations_are_refused(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "MPI")
    with pytest.raises(installer.progress.StepError, match="HOROVOD_GPU_OPERATIONS=MPI: only NCCL is known here"):
        installer._key()


def test_another_source_is_refused(installer: ModuleType, tmp_path: Path) -> None:
    folder = source(installer, tmp_path)
    (folder / "horovod/torch/CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 20)\n")
    with pytest.raises(installer.progress.StepError, match="its source is not the expected one"):
        installer._substitute(folder, 17)


@pytest.fixture
def builds(installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Let a download leave a source, and a build a wheel; return the sources from which wheels were built."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    built: list[Path] = []

    def run(title: str, command: list[str | Path], log: Path, env: object = None) -> None:
        scratch = log.parent / "build"
        if "download" in command:
            name = f"horovod-{installer.HOROVOD_VERSION}"
            source(installer, tmp_path / "made" / name)
            shutil.make_archive(str(scratch / name), "gztar", tmp_path / "made")
        else:
            built.append(Path(command[-1]).rename(tmp_path / "built"))
            with zipfile.ZipFile(scratch / "horovod.whl", "w") as wheel:
                wheel.writestr("horovod/torch/mpi_lib.so", "")

    monkeypatch.setattr(installer.progress, "run", run)
    return built


def test_horovod_is_built_with_the_standard_that_torch_needs(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, builds: list[Path]
) -> None:
    monkeypatch.setattr(installer.torch_version, "cxx_standard", lambda: 20)
    needed: list[int] = []
    monkeypatch.setattr(installer.compiler, "require", lambda standard, what: needed.append(standard))
    left = installer._cache() / "wheels" / installer._key() / "tmp-left-by-a-kill"
    left.mkdir(parents=True)
    assert installer.cached_wheel().is_file()
    (tree,) = builds
    assert "set(CMAKE_CXX_STANDARD 20)" in (tree / "horovod/torch/CMakeLists.txt").read_text()
    assert needed == [20], "the compiler is tried before minutes are spent"
    assert not left.exists()
    assert installer.cached_wheel().is_file()
    assert len(builds) == 1, "it is built once"


def test_headers_that_newer_compilers_do_not_bring_are_included(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-DLENGTH=3 -fsyntax-only")
    flags = installer._environment()["CXXFLAGS"].split()
    source = "std::string name(LENGTH, 'a'); uint8_t byte = LENGTH;"
    subprocess.run(["c++", *flags, "-x", "c++", "-"], input=source, text=True, check=True)


def test_a_compiler_that_is_too_old_is_refused_before_anything_is_downloaded(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, builds: list[Path]
) -> None:
    monkeypatch.setattr(installer.torch_version, "cxx_standard", lambda: 20)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(installer.progress.StepError, match=r"Horovod, with torch .* needs a C\+\+20 compiler"):
        installer.cached_wheel()
    assert builds == []


def test_a_torch_that_is_too_old_is_refused_before_anything_is_downloaded(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, builds: list[Path]
) -> None:
    monkeypatch.setattr(installer.torch_version, "version", lambda name: "2.1.0")
    with pytest.raises(installer.progress.StepError, match=r"torch 2\.1\.0 is not supported"):
        installer.cached_wheel()
    assert builds == []
