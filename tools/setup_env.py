"""Make .venv ready: torch, Open MPI, Horovod, the tools, and this package in editable mode. Does nothing when it is."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import build_cuda
import compiler
import progress
import torch_version

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
READY = VENV / "ready"  # holds the fingerprint of what was installed
LOG = ROOT / "build" / "setup.log"
PIP = "pip==26.3"
STEP_FAILED = 1
"""The exit code of a tool that has said why; others are of signals."""


def main() -> None:
    torch = os.environ["TORCH_REQUIREMENT"]
    fingerprint = _fingerprint(torch)
    if _is_ready(fingerprint):
        return
    LOG.parent.mkdir(exist_ok=True)
    with (LOG.parent / "setup.lock").open("w") as lock:
        progress.acquire(lock.fileno(), "another make sets up this checkout")
        if not _is_ready(fingerprint):
            _set_up(torch)
            READY.write_text(fingerprint)


def _set_up(torch: str) -> None:
    print("Setting up .venv (a few minutes the first time)", flush=True)
    torch_version.require_supported_pin(torch)
    _check_machine()
    LOG.unlink(missing_ok=True)
    if not _venv_fits():
        progress.run("creating .venv", [sys.executable, "-m", "venv", "--clear", VENV], LOG)
    READY.unlink(missing_ok=True)
    _pip("installing pip and the build tools, Open MPI included", PIP, "-r", "requirements/build.txt")
    # Meanwhile, as pip's downloads leave a core idle: the last step then finds what it needs. No kernel needs torch.
    compiling = [VENV_PYTHON, "setup.py", "--quiet", "build_ext"]
    with progress.begun(compiling, LOG.parent / "compiling.log", _environment()) as finish:
        _install_packages(torch)
        cuda = (
            ", CUDA kernels included, which take 2 to 4 minutes; HVD_COMPRESS_CUDA=0 leaves them out"
            if build_cuda.find_nvcc()
            else ""
        )
        finish(f"compiling hvd_compress{cuda}")
    _pip("installing hvd_compress", "--no-deps", "--no-build-isolation", "-e", ".")


def _install_packages(torch: str) -> None:
    size = "" if "+cpu" in torch else ", up to 3 GB where it brings CUDA along; see `make help` for another"
    files = ("-r", "requirements/dev.txt", "-r", "requirements/docs.txt")
    title = f"installing {torch or 'torch'}{size}, and the tools for the package and its tests"
    _pip(title, *torch_version.for_pip(torch), f"torch>={torch_version.OLDEST}", *files)
    _install_horovod()


def _fingerprint(torch: str) -> str:
    requirements = (f"requirements/{name}.txt" for name in ("torch", "build", "dev", "docs"))
    names = (*requirements, "tools/install_horovod.py", "pyproject.toml", "setup.py")
    asked = f"{torch} {_leaves_horovod_out()} {platform.python_version()}"
    text = asked.encode() + b"".join((ROOT / name).read_bytes() for name in names)
    return hashlib.sha256(text).hexdigest()


def _is_ready(fingerprint: str) -> bool:
    return READY.is_file() and READY.read_text() == fingerprint


def _check_machine() -> None:
    try:
        import ensurepip  # noqa: F401  (Debian ships venv without it)
    except ImportError:
        raise progress.StepError(
            f"{sys.executable} cannot create virtual environments: install its venv module "
            "(Debian, Ubuntu: apt install python3-venv)"
        ) from None
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise progress.StepError(
            f"{sys.executable} has no C headers (Python.h): install them (Debian, Ubuntu: apt install python3-dev)"
        )
    compiler.require(17, "hvd_compress")


def _venv_fits() -> bool:
    """An interrupted set-up is continued; an environment of another Python, or one that does not run, starts afresh."""
    if not VENV_PYTHON.exists() or shutil.which("pip", path=str(VENV_PYTHON.parent)) is None:
        return False
    found = subprocess.run([VENV_PYTHON, "-V"], capture_output=True, text=True)
    return found.stdout.split()[-1:] == [platform.python_version()]


def _pip(title: str, *arguments: str) -> None:
    # Compiling every module beforehand takes longer than compiling those that are used, when they are.
    command = [VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", *arguments]
    _run_in_venv(title, command)


def _run_in_venv(title: str, command: Sequence[str | Path]) -> None:
    progress.run(title, command, LOG, _environment())


def _environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{VENV_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}


def _install_horovod() -> None:
    """It depends on the versions inside .venv, so this runs there; it shows its own progress and errors.

    Without it, hvd_compress.torch stands on this package's runtime.
    """
    if _leaves_horovod_out():
        _pip_uninstall_horovod()
        print("Horovod is left out, as HVD_COMPRESS_HOROVOD=0 says", flush=True)
        return
    code = progress.call([VENV_PYTHON, ROOT / "tools" / "install_horovod.py"])
    if code not in (0, STEP_FAILED):
        sys.exit(code)
    if code == STEP_FAILED:
        _pip_uninstall_horovod()
        print(
            "Horovod does not build here, as the error above says: continuing without it. `rm .venv/ready` and make "
            "setup try again; HVD_COMPRESS_HOROVOD=0 leaves it out at once",
            flush=True,
        )


def _leaves_horovod_out() -> bool:
    return os.environ.get("HVD_COMPRESS_HOROVOD") == "0"


def _pip_uninstall_horovod() -> None:
    """One of another torch, or of an earlier set-up."""
    found = subprocess.run([VENV_PYTHON, "-m", "pip", "show", "-q", "horovod"], capture_output=True)
    if found.returncode == 0:
        _run_in_venv("removing Horovod", [VENV_PYTHON, "-m", "pip", "uninstall", "-y", "horovod"])


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
