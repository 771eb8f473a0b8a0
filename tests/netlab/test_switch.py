"""The emulated switch, in C++ and in a time of its own (tests/netlab/cpp/switch_test.cpp), with sanitizers."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.level2
def test_the_switch(tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    flags = ["-std=c++17", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [ROOT / "tests/netlab/cpp/switch_test.cpp", ROOT / "csrc/netlab/switch.cpp"]
    subprocess.run([*compiler, *flags, *sources, "-o", tmp_path / "switch_test"], check=True)
    result = subprocess.run([tmp_path / "switch_test"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
