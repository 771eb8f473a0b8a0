"""One library holds the code of several machines; no machine may meet another's."""

from __future__ import annotations

import itertools
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress import native

OBJECTS = Path(__file__).parents[2] / "build" / f"native-{sys.implementation.cache_tag}" / "CMakeFiles"


@pytest.mark.level1
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_nothing_of_a_level_can_be_taken_for_anothers(level: str) -> None:
    """A weak symbol of one object file may stand for that of all others: it would run where it must not."""
    files = sorted(OBJECTS.glob(f"_native_{level}.dir/**/*.o"))
    if not files:
        pytest.skip(f"no object files under {OBJECTS}")
    for file in files:
        listed = subprocess.run(["nm", "-C", "--defined-only", file], check=True, capture_output=True, text=True).stdout
        weak = [line for line in listed.splitlines() if line[17:18] in set("WVu")]
        assert not weak, f"{file.name}: {weak}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one level")
def test_the_best_level_is_that_of_the_processor() -> None:
    """The kernel of Linux lists what it lets programs use."""
    flags = set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split())
    needed = [{"avx2", "f16c", "popcnt"}, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}]
    above = list(itertools.takewhile(lambda names: names <= flags, needed))
    assert native.simd_levels() == native.SIMD_LEVELS[: 1 + len(above)]
