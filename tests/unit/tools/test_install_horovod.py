"""Which Horovod is built: for CPUs, or with NCCL; each with a wheel of its own in the cache."""

from __future__ import annotations

import importlib
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
