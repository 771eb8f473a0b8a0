"""Build the wheel into dist/, see that it is complete, and try it in an environment with torch alone.

Needs what requirements/build.txt holds. The environment is build/wheel-smoke: torch (TORCH_REQUIREMENT) and what the
wheel names, from pip's index, and not even pip. It is kept, and made anew when torch, Python or what the wheel names
differ.
"""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path

import build_cuda
import progress
import torch_version

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGE = "hvd_compress"
ENVIRONMENT = ROOT / "build" / "wheel-smoke"
PYTHON = ENVIRONMENT / "bin" / "python"
READY = ENVIRONMENT / "ready"  # holds what the environment was made of
SMOKE_TEST = ROOT / "tests" / "wheel" / "smoke.py"
LOG = ROOT / "build" / "wheel.log"
SOURCES = ("*.py", "*.pyi", "py.typed", "*.csv")
RELAY = f"{PACKAGE}/netlab/netlab_relay"


def main() -> None:
    torch = os.environ.get("TORCH_REQUIREMENT", f"torch>={torch_version.OLDEST}")
    torch_version.require_supported_pin(torch)
    LOG.unlink(missing_ok=True)
    wheel = build()
    require_complete(wheel)
    make_environment(torch, dependencies(wheel))
    _pip("installing the wheel", "--no-deps", "--force-reinstall", wheel)
    # What a user has who never saw this checkout: no variables of ours or of Python's, and no other programs of ours.
    environment = {"HOME": os.environ.get("HOME", "/"), "PATH": f"{PYTHON.parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    progress.run("trying it without Horovod and MPI", [PYTHON, "-I", SMOKE_TEST], LOG, environment)
    _pip("looking for what the extras name", "--dry-run", f"{PACKAGE}[{','.join(extras(wheel))}]")
    print(f"  {wheel.relative_to(ROOT)} ({wheel.stat().st_size / 2**20:.1f} MiB) works", flush=True)


def build() -> Path:
    """Return the wheel, built anew: setuptools would pack modules that an earlier build left in build/."""
    for left in (*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*")):
        shutil.rmtree(left)
    for old in DIST.glob(f"{PACKAGE}-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", DIST, ROOT]
    progress.run("building the wheel", command, LOG)
    (wheel,) = DIST.glob(f"{PACKAGE}-*.whl")
    return wheel


def require_complete(wheel: Path) -> None:
    """Raise StepError where a file is missing, or is there that no source stands for, or the tag is another one's."""
    tag = re.fullmatch(rf"{PACKAGE}-[^-]+-(\w+-\w+)-(\w+)\.whl", wheel.name)
    if tag is None or tag[1] != f"{_cpython()}-{_cpython()}" or tag[2] != f"linux_{platform.machine()}":
        raise progress.StepError(f"{wheel.name} must be tagged for this Python and this machine: it holds native code")
    with zipfile.ZipFile(wheel) as content:
        modes = {file.filename: file.external_attr >> 16 for file in content.infolist()}
    found = {re.sub(r"(/_native)\..*\.so$", r"\1.so", name) for name in modes if name.startswith(f"{PACKAGE}/")}
    expected = {path.relative_to(ROOT).as_posix() for kind in SOURCES for path in (ROOT / PACKAGE).rglob(kind)}
    expected |= {f"{PACKAGE}/_native.so", RELAY}
    if build_cuda.find_nvcc() is not None:
        expected.add(f"{PACKAGE}/{build_cuda.LIBRARY}")
    if found != expected:
        raise progress.StepError(f"{wheel.name} lacks {sorted(expected - found)}, and holds {sorted(found - expected)}")
    if not modes[RELAY] & 0o111:
        raise progress.StepError(f"{RELAY} in {wheel.name} cannot be executed")


def dependencies(wheel: Path) -> list[str]:
    """What pip installs with the wheel, extras aside."""
    return sorted(line for line in _metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line)


def extras(wheel: Path) -> list[str]:
    return sorted(_metadata(wheel).get_all("Provides-Extra", []))


def make_environment(torch: str, requirements: Sequence[str]) -> None:
    made_of = "\n".join((platform.python_version(), torch, *requirements))
    if READY.is_file() and READY.read_text() == made_of:
        return
    create = [sys.executable, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT]
    progress.run("creating build/wheel-smoke", create, LOG)
    _pip(f"installing {torch} there, up to 3 GB where it brings CUDA along", torch, *requirements)
    READY.write_text(made_of)


def _pip(title: str, *arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--disable-pip-version-check", "--no-compile"]
    progress.run(title, [*pip, *arguments], LOG)


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(content.read(name))


def _cpython() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
