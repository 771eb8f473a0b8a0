"""Kernels under the tools of compute-sanitizer, each with a limit of its own."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu.commands import Ended, require, run
from benchmarks.gpu.items import FaultyError, LeftOutError, notes

CHECK = ("-m", "benchmarks.gpu.check")
OURS = "hvd_compress"
"""In the name of each of our kernels. initcheck has to see the writes of others, so it looks at all."""
TOOLS = {
    "memcheck": ["--kernel-regex", f"kns={OURS}", "--report-api-errors", "no"],
    "racecheck": ["--kernel-regex", f"kns={OURS}"],
    "synccheck": ["--kernel-regex", f"kns={OURS}"],
    "initcheck": [],
}
FAULT_STATUS = 9
REFUSED = ("Device not supported", "not supported on this platform", "Unable to find injection library")
FAULT = re.compile(
    r"^=+ +(?:Error: |Warning: )?(Invalid|Uninitialized|Misaligned|Barrier error|Race reported|Potential)"
)
"""How a tool begins to tell of a fault; an error of a call of CUDA is told by the program itself."""


class FaultsError(FaultyError):
    """What a tool says of our kernels."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None)


def sanitize(
    tool: str, limit_s: float, say: Callable[[str], object], options: Sequence[str] = ("--scale=sanitized",)
) -> str:
    """Compare small inputs under a tool; return what it has checked.

    Args:
        limit_s: seconds after which it is ended; a fault that it has told of by then counts.
        say: takes the lines of its output.
        options: of the comparison.

    Raises:
        LeftOutError: there is no such tool, it does not run here, or it has not ended.
        FaultsError: it tells of a fault, or results differ.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise LeftOutError("no compute-sanitizer on PATH")
    chosen = (
        TOOLS[tool] if "--kernel-regex" in require([program, "--help"], limit_s=60.0, say=lambda line: None) else []
    )
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")
        words = [program, "--tool", tool, *chosen, "--error-exitcode", str(FAULT_STATUS), sys.executable, *CHECK]
        words += ["part", "parity", f"--journal={journal}", *options]
        # Without torch's cache each tensor is an allocation of its own, of which the tool sees the ends.
        environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        ended = run(words, environment=environment, limit_s=limit_s, alone=True, say=say)
        known = notes(journal)
    names = next((note["items"] for note in known if "items" in note), [])
    failed = [note["end"] for note in known if "failure" in note.get("outcome", {})]
    return judge(ended, f"{sum('end' in note for note in known)} of {len(names)} items", failed, limit_s)


def judge(ended: Ended, checked: str, failed: list[str], limit_s: float) -> str:
    """Return what was checked. Raises as sanitize(). `failed`: items whose results differ."""
    faults = [line.strip() for line in ended.output.splitlines() if FAULT.match(line)]
    if ended.status == FAULT_STATUS or faults:
        raise FaultsError(f"{faults[0] if faults else ended.told}; {checked} run")
    refused = [line.strip() for line in ended.output.splitlines() if any(word in line for word in REFUSED)]
    if refused:
        raise LeftOutError(f"refused: {refused[0]}")
    if ended.status is None:
        raise LeftOutError(f"no end within {limit_s:g} s; {checked} run without a fault")
    if ended.status != 0:
        raise FaultsError(f"{', '.join(failed) or ended.told}; {checked} run")
    return f"clean, {checked}"
