"""What is built on other systems and processors than this one, as CMake plans it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pybind11
import pytest

ROOT = Path(__file__).parents[3]


def planned(folder: Path, *options: str) -> str:
    """Return the targets of a build, of which nothing is compiled, not even to try the compiler."""
    own = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-DHVD_COMPRESS_MODULE_NAME=_native.so",
        "-DCMAKE_CXX_COMPILER_WORKS=ON",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
    ]
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *own, *options]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "build.ninja").read_text()


@pytest.mark.parametrize(
    ("options", "relay", "vectors"),
    [
        (("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"), True, False),
        (("-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64"), False, False),
        (("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=x86_64", "-DHVD_COMPRESS_RELAY=OFF"), False, True),
    ],
    ids=["aarch64", "macos", "without the relay"],
)
def test_what_is_planned(tmp_path: Path, options: tuple[str, ...], relay: bool, vectors: bool) -> None:
    targets = planned(tmp_path, *options)
    assert "_native_portable.dir" in targets
    assert ("netlab_relay" in targets) == relay
    assert ("_native_avx512.dir" in targets) == vectors
    assert ("exported.map" in targets) == ("-DCMAKE_SYSTEM_NAME=Darwin" not in options)
