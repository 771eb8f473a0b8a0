"""Try a wheel (tests/wheel/smoke.py) in an environment with torch alone: neither Horovod, nor MPI, nor a compiler.

The environment is build/wheel-smoke: torch and what the wheel names, from pip's index, and not even pip. It is kept,
and made anew when torch, Python or what the wheel names differ. Which torch: $WHEEL_TORCH, several with spaces between,
or $TORCH_REQUIREMENT, or that of requirements/torch.txt. Both ends of what is supported, the oldest with a Python that
it has wheels for:

    make wheel PYTHONS=3.11 WHEEL_TORCH="torch==2.4.1 torch==2.15.0"
"""

from __future__ import annotations

import email
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path

import progress
import torch_version

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "wheel-smoke"
PYTHON = ENVIRONMENT / "bin" / "python"
READY = ENVIRONMENT / "ready"  # holds what the environment was made of
SMOKE_TEST = ROOT / "tests" / "wheel" / "smoke.py"


def torches() -> list[str]:
    """Return requirements, of which "" is the default. Raises StepError for one that is too old."""
    wanted = (os.environ.get("WHEEL_TORCH") or os.environ.get("TORCH_REQUIREMENT", "")).split() or [""]
    for torch in wanted:
        torch_version.require_supported_pin(torch)
    return wanted


def try_out(wheel: Path, python: Path, torch: str, log: Path) -> None:
    """Raises StepError where the wheel does not work there."""
    make_environment(python, torch, dependencies(wheel), log)
    _pip("installing the wheel", log, "--no-deps", "--force-reinstall", wheel)
    # What a user has who never saw this checkout: no variables of ours or of Python's, and no other programs of ours.
    environment = {"HOME": os.environ.get("HOME", "/"), "PATH": f"{PYTHON.parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    progress.run(
        f"trying it with {torch or 'torch'}, without Horovod and MPI", [PYTHON, "-I", SMOKE_TEST], log, environment
    )
    _pip("looking for what the extras name", log, "--dry-run", f"{wheel}[{','.join(extras(wheel))}]")


def dependencies(wheel: Path) -> list[str]:
    """What pip installs with the wheel, extras aside."""
    return sorted(line for line in _metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line)


def extras(wheel: Path) -> list[str]:
    return sorted(_metadata(wheel).get_all("Provides-Extra", []))


def make_environment(python: Path, torch: str, requirements: Sequence[str], log: Path) -> None:
    release = subprocess.run([python, "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    made_of = "\n".join((release, torch or torch_version.DEFAULT.read_text(), *requirements))
    if READY.is_file() and READY.read_text() == made_of:
        return
    progress.run("creating build/wheel-smoke", [python, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT], log)
    needed = (*torch_version.for_pip(torch), *requirements)
    _pip(f"installing {torch or 'torch'} there, up to 3 GB where it brings CUDA along", log, *needed)
    READY.write_text(made_of)


def _pip(title: str, log: Path, *arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--disable-pip-version-check", "--no-compile"]
    progress.run(title, [*pip, *arguments], log)


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(content.read(name))
