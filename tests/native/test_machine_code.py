"""What docs/gpu-kernels.md promises of the machine code: loads under way, occupancy, and nothing in local memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.machine_code import Function, functions

pytestmark = pytest.mark.level2

ROOT = Path(__file__).parents[2]
CUBINS, LOG = ROOT / "build" / "cuda" / "cubins", ROOT / "build" / "cuda" / "ptxas.log"
ROW = re.compile(r"^\| `(?P<kernel>\w+<.*>)` \| (?P<loads>\d+) \| (?P<blocks>\d+) \|$", re.MULTILINE)
USED = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_90a?'\n.*\n.*\n"
    r"ptxas info *: Used (?P<registers>\d+) registers, used \d+ barriers(?:, (?P<shared>\d+) bytes smem)?"
)
PROMISED = {row["kernel"]: row for row in ROW.finditer((ROOT / "docs" / "gpu-kernels.md").read_text())}

# Of compute capability 9.0 (CUDA C++ Programming Guide, Technical Specifications per Compute Capability).
REGISTERS, SHARED_BYTES, THREADS = 65_536, 233_472, 2048
RESERVED_BYTES = 1024
"""Of shared memory, for each block."""
REGISTERS_AT_ONCE = 8
"""Registers of a thread are given in such steps."""
BLOCK = 256


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: nothing runs here."""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Function]:
    """By name as the documentation has it."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here, so no CUDA kernels were built")
    found = [function for cubin in sorted(CUBINS.glob("*.cubin")) for function in functions(cubin)]
    names = "\n".join(function.name for function in found)
    plain = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(map(_short, plain), found, strict=True))


def _short(demangled: str) -> str:
    """From "void hvd_compress::cuda::run<hvd_compress::cuda::Average>(hvd_compress::cuda::Average)"."""
    name = re.sub(r"hvd_compress::(cuda::)?", "", demangled)
    match = re.match(r"void run<(.*)>\(", name)
    return match[1].replace(" >", ">").rstrip() if match else name


def _used(name: str) -> Iterator[tuple[int, int]]:
    for entry in USED.finditer(LOG.read_text()):
        if entry["name"] == name:
            yield int(entry["registers"]), int(entry["shared"] or 0)


def test_the_documentation_promises_something() -> None:
    assert len(PROMISED) >= 10
    assert all(int(row["loads"]) >= 6 for row in PROMISED.values())


def test_nothing_lies_in_local_memory(kernels: dict[str, Function]) -> None:
    assert len(kernels) > 100
    assert [name for name, function in kernels.items() if function.touches_local_memory()] == []


@pytest.mark.parametrize("name", PROMISED)
def test_loads_are_under_way_together(kernels: dict[str, Function], name: str) -> None:
    assert kernels[name].loads_in_flight(16) == int(PROMISED[name]["loads"])


@pytest.mark.parametrize("name", PROMISED)
def test_so_many_blocks_fit_a_multiprocessor(kernels: dict[str, Function], name: str) -> None:
    ((registers, shared),) = _used(kernels[name].name)
    each = -(-registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE * BLOCK
    blocks = min(REGISTERS // each, SHARED_BYTES // (shared + RESERVED_BYTES), THREADS // BLOCK)
    assert blocks == int(PROMISED[name]["blocks"])
