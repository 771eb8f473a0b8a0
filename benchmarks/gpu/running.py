"""Runs the parts of a check, each in processes of its own, and writes the report after each item.

A kernel that faults takes the CUDA context with it, and one that hangs does not come back: then the process is ended,
the item has failed, and another process goes on with the next item.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame.store import ROOT
from benchmarks.gpu.items import notes
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.report import Report

CHECK = ("-m", "benchmarks.gpu.check")
POLL_S = 0.1
RESERVE_S = 5.0
"""Of the limit, to write the report and to end."""
KILLED_S = 3.0
"""How long a process that was killed is waited for."""


@dataclass
class Process:
    """How far a process that runs items has come, and how it has ended.

    Attributes:
        last: the item that began last, in this process or in the one before; "" before the first.
        since: when it, or the process, began, or it ended; by time.monotonic().
        names: of all items of the part.
        begun: whether an item has begun in this process.
        runs: whether `last` has not ended.
        read: notes of it that are known.
        status: its exit status.
        cut, hung: whether it was ended, since the time of the whole check was up, or that of an item.
        said: what it has printed last.
    """

    last: str
    since: float
    names: tuple[str, ...] = ()
    begun: bool = False
    runs: bool = False
    read: int = 0
    status: int = -signal.SIGKILL
    cut: bool = False
    hung: bool = False
    said: str = ""

    @property
    def behind(self) -> tuple[str, ...]:
        """Return the items that have not begun."""
        return self.names[self.names.index(self.last) + 1 :] if self.last in self.names else self.names


class Runner:
    """Runs parts one after the other, as long as there is time."""

    def __init__(self, report: Report, options: list[str], limit_s: float | None) -> None:
        """`options`: of the hidden command that runs the items of a part."""
        self._report, self._options = report, options
        self._deadline = None if limit_s is None else time.monotonic() + limit_s - RESERVE_S

    @property
    def left_s(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def run(self, name: str) -> None:
        """Run a part, if there is time for it."""
        part = PARTS[name]
        if self.left_s < part.needs_s:
            self._report.leave_out(name, f"{max(0.0, self.left_s):.0f} s were left, and it needs {part.needs_s:.0f}")
            return
        self._report.begin(name)
        begun_s, after, goes_on = time.monotonic(), "", True
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder, "journal")
            while goes_on:
                journal.unlink(missing_ok=True)
                process = self._processed(name, part, journal, after)
                goes_on, after = self._judge(name, part, process), process.last
        self._report.end(name, time.monotonic() - begun_s)

    def _processed(self, name: str, part: Part, journal: Path, after: str) -> Process:
        """Run the items that follow `after` in a process, until it ends or has to be ended."""
        words = [sys.executable, *CHECK, "part", name, f"--journal={journal}", f"--after={after}", *self._options]
        if self._deadline is not None:
            words.append(f"--left-s={self.left_s:.1f}")
        printed_before = self._report.log.stat().st_size
        with self._report.log.open("a") as log:
            started = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, preexec_fn=os.setpgrp)
        process = Process(after, time.monotonic())
        try:
            while started.poll() is None and not (process.cut or process.hung):
                time.sleep(POLL_S)
                self._read(name, journal, process)
                process.cut = self.left_s <= 0
                process.hung = time.monotonic() - process.since > part.item_s
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # with all that it has started
            with suppress(subprocess.TimeoutExpired):  # the driver may keep what hangs in a kernel
                process.status = started.wait(KILLED_S)
        self._read(name, journal, process)
        process.said = self._report.last_line(printed_before)
        return process

    def _read(self, name: str, journal: Path, process: Process) -> None:
        """Take over what was noted since the last time."""
        known = notes(journal)
        for note in known[process.read :]:
            process.since = time.monotonic()
            if "items" in note:
                process.names = tuple(note["items"])
            elif "begin" in note:
                process.last, process.begun, process.runs = note["begin"], True, True
            else:
                process.runs = False
                self._report.item(name, note["end"], note["outcome"])
        process.read = len(known)

    def _judge(self, name: str, part: Part, process: Process) -> bool:
        """Tell of what has not ended; return whether another process is to do the items after it."""
        if process.cut:
            for left in ((process.last,) if process.runs else ()) + process.behind:
                self._report.item(name, left, {"left_out": "the time was up"})
            if not process.names:
                self._report.leave_out(name, "the time was up")
            return False
        told = f"the process ended with status {process.status}: {process.said}"
        if process.hung:
            told = f"no end within {part.item_s:g} s: {process.said}"
        if process.runs:
            self._report.item(name, process.last, {"failure": told})
        elif not process.begun:
            if process.hung or process.status != 0:
                self._report.fail(name, told)
            return False
        return bool(process.behind)
