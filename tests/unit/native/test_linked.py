"""The extension works beside any torch, since it links none: addresses go in, numbers come out."""

from __future__ import annotations

import re
import subprocess

import pytest

from hvd_compress.native import module

SYSTEM = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "libgcc_s.so", "libstdc++.so")


@pytest.mark.level1
def test_the_extension_links_the_system_alone() -> None:
    listed = subprocess.run(["readelf", "-d", module.compiled.__file__], check=True, capture_output=True, text=True)
    libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", listed.stdout)
    assert "libc.so.6" in libraries
    assert [name for name in libraries if not name.startswith(SYSTEM)] == []


@pytest.mark.level1
def test_only_its_entry_is_visible() -> None:
    """What it holds of a C++ library cannot take the place of another one's, such as torch's."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", module.compiled.__file__], check=True, capture_output=True, text=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__native"]
