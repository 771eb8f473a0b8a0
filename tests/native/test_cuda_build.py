"""What the compiler says of the CUDA kernels: nothing spilled, and few enough registers for many threads at once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hvd_compress.native import cuda

LOG = Path(__file__).parents[2] / "build" / "cuda" / "ptxas.log"
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<machine>\d+)a?'\n"
    r"ptxas info *: Function properties for \w+\n"
    r" *(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\n"
    r"ptxas info *: Used (?P<registers>\d+) registers"
)
BUDGETS = {
    "TernaryFit": 128,
    "QuantizeBlocks": 80,
    r"7CollectI.*(?<!f)EELb0E": 80,  # of 16-bit residuals
    "CountReaching": 80,
    "AddNumbers": 80,
    "Queue": 80,
    "DrawRow": 168,
    "SumRow": 80,
}
"""Registers of a thread, of kernels whose name matches: 64 leave room for 4 blocks of 256 threads, 80 for 3, 128 for 2.
The curve's rows are drawn by 32 blocks, and the queue is one."""
BUDGET = 64

KERNELS = {
    "Begin", "Sample", "ChooseLow", "ChooseRange", "Collect", "CountAll", "Queue", "CountDigit", "Rank", "Emit",
    "Correct", "Average", "SubtractSent", "AddSigns", "SetFinite", "Accumulated",
    "CountReaching", "PlaceCounts", "EmitReaching", "ClearCounts", "CountMagnitudes", "SumRow", "DrawRow",
    "CorrectForNorm", "FindNorm", "Quantize", "AddNumbers",
    "SumMagnitudes", "BeginBisection", "CountThresholds", "Bisect", "AddLists", "AtIndices",
    "QuantizeBlocks", "SumBlocks", "ClearWords", "SetBits", "CountOnes", "EmitIndices",
    "MeasureChunks", "PlaceChunks", "WriteChunks", "PlaceCoded", "DecodeChunks",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: nothing runs here."""


@pytest.fixture(scope="module")
def entries() -> list[dict[str, str]]:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here, so no CUDA kernels were built")
    found = [entry.groupdict() for entry in ENTRY.finditer(LOG.read_text())]
    assert found, f"{LOG} tells of no kernel"
    return found


def test_every_kernel_is_built_for_every_machine(entries: list[dict[str, str]]) -> None:
    for machine in ("80", "90", "100"):
        names = " ".join(entry["name"] for entry in entries if entry["machine"] == machine)
        missing = {kernel for kernel in KERNELS if not re.search(rf"\d{kernel}[EI]", names)}
        assert not missing, f"sm_{machine} lacks {missing}"


def test_nothing_is_spilled(entries: list[dict[str, str]]) -> None:
    spilled = [entry for entry in entries if {entry["stack"], entry["stores"], entry["loads"]} != {"0"}]
    assert not spilled


def test_registers_stay_within_their_budget(entries: list[dict[str, str]]) -> None:
    for entry in entries:
        budget = next((limit for name, limit in BUDGETS.items() if re.search(name, entry["name"])), BUDGET)
        assert int(entry["registers"]) <= budget, entry


def test_the_library_loads_without_a_driver(entries: list[dict[str, str]]) -> None:
    assert cuda.LIBRARY.exists()
    assert isinstance(cuda.load().hvd_compress_device_count(), int)
