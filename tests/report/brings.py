"""Command lines of `hvd-compress report`, right and wrong."""

from __future__ import annotations

from pathlib import Path

from hvd_compress.events.history import Event
from hvd_compress.events.log import Log

COMMANDS = [("report",)]
PICTURES = DRAWING = ["report"]
"""Commands that draw; and of READERS those that take a third of a second for it."""
LOG_READERS = ["report"]
"""Commands that say of a log why buckets travelled as they did."""

READERS = {"report": ("log.jsonl", lambda folder: ["report", folder / "log.jsonl", "--out", folder / "out.png"])}
"""Each file that a command reads, and the command, given a folder of files."""
WRITERS = {"report": lambda folder: ["report", folder / "log.jsonl", "--out"]}
"""Each file that a command writes, and the command."""


def _write(folder: Path) -> None:
    log = Log(folder / "log.jsonl")
    for event in (Event(1, "ratio", 0, ratio=0.01), Event(9, "choice", 0, "star-ring", 0.01, 0.004, 0.003)):
        log(event)


FILES = [_write]
"""What writes these files as they should be."""
USES = {"a plot": ("matplotlib", "from hvd_compress.report import plot; plot.draw([], None)")}
"""For each use: the package that it needs, and statements."""

ALLOWED = {"report": {"cli.outputs", "errors", "events", "report"}}
"""What the modules of this guest may import of the package."""
