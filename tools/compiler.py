"""Whether there is a C++ compiler, and whether it knows a standard of the language."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import progress

PROBES = {
    17: "#include <optional>\nint main() { return std::optional<int>(0).value(); }\n",
    20: "#include <concepts>\n#include <span>\nstatic_assert(std::integral<int>);\nint main() { return 0; }\n",
    23: "#include <expected>\nint main() { return std::expected<int, int>(0).value(); }\n",
}
"""Small programs that need a standard, by its number."""


def require(standard: int, what: str) -> None:
    """Raise StepError unless the compiler ($CXX, or c++) can build a program of that standard.

    Args:
        standard: 17, 20 or 23.
        what: what needs it, in words.
    """
    command = shlex.split(os.environ.get("CXX") or "c++")
    if shutil.which(command[0]) is None:
        raise progress.StepError(
            f"no C++ compiler: {command[0]} is not on PATH; install one (Debian, Ubuntu: apt install g++) or set CXX"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBES[standard])
        words = [*command, f"-std=c++{standard}", str(source), "-o", str(Path(folder, "probe"))]
        attempt = subprocess.run(words, capture_output=True, text=True)
    if attempt.returncode != 0:
        raise progress.StepError(
            f"{what} needs a C++{standard} compiler, and {command[0]} cannot compile it: install a newer one "
            f"or set CXX\n{attempt.stderr}"
        )
