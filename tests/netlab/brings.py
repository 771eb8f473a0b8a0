"""Command lines of the network lab that are not as they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GROUPS = ["netlab"]
COMMANDS = [("netlab", "set")]
MEANT = [("netlab run --schedule c1lab -- true", "did you mean c1-lab?")]
"""A command line, and what its error says."""


def beyond(number: str) -> list[list[str]]:
    """Return command lines with a number that nothing has."""
    return [["netlab", "run", "--hosts", number, "--latency", "1ms", "--bandwidth", "1gbit", "--", "true"]]


BEYOND = [beyond]


def _run(folder: Path) -> list[Any]:
    return ["netlab", "run", "--schedule", folder / "schedule.csv", "--hosts", 0, "--", "true"]


READERS = {"netlab run": ("schedule.csv", _run)}
"""Each file that a command reads, and the command, given a folder of files."""
ENDS = {"netlab run": "Error: hosts = 0 is not a whole number, 1 to 64\n"}
"""What is said where the file is as it should be: labs need root."""


def _write(folder: Path) -> None:
    (folder / "schedule.csv").write_text("at_s, latency, bandwidth\n0, 1ms, 1gbit\n")


FILES = [_write]
"""What writes these files as they should be."""

ALLOWED = {
    "netlab": {
        "cli",
        "errors",
        "netlab",
        "units",
    }
}
"""What the modules of this guest may import of the package."""

OPTIONS = [19]
"""Its commands have more options."""
