"""Tests on a copy of the checkout in which one fault was made, the nearest first, until one notices.

What a test notices counts only if it passes on the copy without the fault, and a test that takes too long only if it
takes less than a third of that time without. Whatever fails by itself is left out from then on, and named in the table.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import closure
import progress

BATCHES = (5, 20)
"""Files of tests in the first processes of pytest; the last one takes all others."""
LAST = ("tests/jobs/", "tests/unit/tools/", "tests/unit/docs/")
HANGS_S = 120.0
"""One test that takes longer is ended, and compared with itself without the fault."""
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
GRACE_S = 10.0
ENDED = re.compile(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
BROKEN = re.compile(r"^ERROR (tests/[^\s:]+\.py)", re.MULTILINE)
FAILED = ("FAILED", "ERROR", "XPASS")
SUCCESS, NOTHING_COLLECTED = 0, 5


@dataclass(frozen=True)
class Fault:
    """Other contents of files, in compiled ones the number of the fault that is switched on, and what else the
    environment says to tests."""

    files: Mapping[str, bytes]
    number: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)

    def undone(self) -> Fault:
        return Fault(self.files if self.number else {}, variables=self.variables)


@dataclass
class Outcome:
    """What became of one fault.

    Attributes:
        found_by: the test that noticed it; "" where it survived.
        how: "fails", "hangs" or "crashes".
        seconds: of all tests.
        tests: how many ran.
        is_complete: whether all tests ran that need what was changed.
    """

    found_by: str = ""
    how: str = ""
    seconds: float = 0.0
    tests: int = 0
    is_complete: bool = False

    def words(self) -> str:
        if self.found_by:
            return f"{self.found_by} {self.how} after {self.seconds:.0f} s"
        return f"**survived** {self.tests} tests in {self.seconds:.0f} s{'' if self.is_complete else ', not all'}"


@dataclass
class Ran:
    """One process of pytest."""

    status: int | None  # None where it was ended from here
    ended: list[tuple[str, str]]
    running: str
    hangs: bool
    seconds: float
    broken: list[str]


@dataclass
class Copy:
    """A copy of the checkout, in which one fault at a time is made.

    Attributes:
        root: the checkout.
        folder: of the copy, made anew.
        left_out: tests that fail, or take too long, by themselves, and why; shared by all copies.
        launcher: what starts pytest, such as mpirun.
    """

    root: Path
    folder: Path
    left_out: dict[str, str] = field(default_factory=dict)
    launcher: Sequence[str] = ()

    def make(self, tests_of: str = "") -> None:
        """Copy all files, those that were built too; tests_of: a commit whose tests/ to take."""
        shutil.rmtree(self.folder, ignore_errors=True)
        built = [*(self.root / "hvd_compress").rglob("*.so"), self.root / "hvd_compress/netlab/netlab_relay"]
        built += (self.root / "build").glob("native-*/tiles.so")
        files = [*closure.checkout(self.root).files, *(path.relative_to(self.root).as_posix() for path in built)]
        for file in files:
            if (self.root / file).is_file():
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / file, self.folder / file)
        if tests_of:
            shutil.rmtree(self.folder / "tests")
            archive = subprocess.run(
                ["git", "archive", tests_of, "tests"], cwd=self.root, stdout=subprocess.PIPE, check=True
            )
            subprocess.run(["tar", "-x"], cwd=self.folder, input=archive.stdout, check=True)

    @functools.cached_property
    def tree(self) -> closure.Checkout:
        """Return what is in it."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return closure.Checkout(self.folder, [path.relative_to(self.folder).as_posix() for path in paths])

    def meet(self, fault: Fault, tests: Sequence[str], options: Sequence[str], limit_s: float) -> Outcome:
        """Run tests with a fault, in their order, until one notices or the time is over."""
        outcome, left = Outcome(), list(tests)
        for size in (*BATCHES, len(left)):
            batch, left = left[:size], left[size:]
            while batch and not outcome.found_by and outcome.seconds < limit_s:
                ran = self._with(fault, batch, options, limit_s - outcome.seconds)
                outcome.seconds += ran.seconds
                culprit, how = noticed(ran)
                if culprit and not self._passes_without(culprit, how, fault, options):
                    batch = [test for test in batch if test not in self.left_out]
                    continue
                outcome.found_by, outcome.how = culprit, how
                outcome.tests += len(ran.ended)
                break
        outcome.is_complete = not outcome.found_by and outcome.seconds < limit_s
        return outcome

    def _passes_without(self, test: str, how: str, fault: Fault, options: Sequence[str]) -> bool:
        if test.startswith("tests/"):
            clean = self._with(fault.undone(), [test], options, 2 * HANGS_S)
            if clean.hangs or (how == "hangs" and 3 * clean.seconds > HANGS_S):
                self.left_out[test] = f"takes {clean.seconds:.0f} s without a fault"
            elif noticed(clean)[0]:
                self.left_out[test] = "fails without a fault"
        return test not in self.left_out

    def _with(self, fault: Fault, tests: Sequence[str], options: Sequence[str], limit_s: float) -> Ran:
        before = {name: (self.folder / name).read_bytes() for name in fault.files}
        try:
            self._write(fault.files)
            return self._pytest(tests, options, limit_s, fault)
        finally:
            self._write(before)

    def _write(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            (self.folder / name).unlink()  # a library that a process still uses cannot be written to
            (self.folder / name).write_bytes(content)
            if name.endswith(".py"):  # bytecode counts as current for any source of its size and second
                Path(importlib.util.cache_from_source(str(self.folder / name))).unlink(missing_ok=True)

    def _pytest(self, tests: Sequence[str], options: Sequence[str], limit_s: float, fault: Fault) -> Ran:
        deselected = [word for test in list(self.left_out) for word in ("--deselect", test)]
        quiet = ["-x", "-v", "--tb=line", "--color=no", "-p", "no:cacheprovider"]
        command = [*self.launcher, sys.executable, "-m", "pytest", *quiet, *deselected, *options, *tests]
        own = {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "HVD_MUTANT": str(fault.number)}
        log, start = self.folder.with_suffix(".log"), time.monotonic()
        with log.open("w") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | own | fault.variables,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        hangs = False
        while process.poll() is None and time.monotonic() - start < limit_s and not hangs:
            time.sleep(0.2)
            hangs = time.time() - log.stat().st_mtime > HANGS_S
        is_ended = process.poll() is None
        said_at_all = log.read_text(errors="replace")  # before the running test fails for being ended
        if is_ended:
            progress.end_group(process, signal.SIGTERM, GRACE_S)  # politely first, as mpirun ends its ranks then
        return Ran(
            None if is_ended else process.returncode,
            ENDED.findall(said_at_all),
            _running(said_at_all),
            hangs,
            time.monotonic() - start,
            BROKEN.findall(said_at_all),
        )


def _end_with_parent() -> None:
    """In a process that begins: have Linux end it when this one dies, however that comes."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _running(said: str) -> str:
    """Return the test that has begun and not ended; a crash writes after its name."""
    begun = [line for line in said.splitlines() if line.startswith("tests/") and "::" in line]
    return "" if not begun or ENDED.match(begun[-1]) else begun[-1].partition("Fatal Python error")[0].strip()


def noticed(ran: Ran) -> tuple[str, str]:
    """Return which test noticed something, and how it did; "" where none has."""
    if failed := [test for test, outcome in ran.ended if outcome in FAILED]:
        return failed[-1], "fails"
    if ran.hangs:
        return ran.running, "hangs"
    if ran.status in (None, SUCCESS, NOTHING_COLLECTED):
        return "", ""
    return (ran.broken[0], "cannot be collected") if ran.broken else (ran.running or "pytest itself", "crashes")


def nearest(checkout: closure.Checkout, file: str) -> list[str]:
    """Return the tests that need a file: those of its module, of its room, then by distance and size, but for LAST."""
    steps = checkout.tests_of([file])
    path = PurePosixPath(file)
    family = path.parent.name if file.startswith("csrc/") else path.stem
    room = "native" if file.startswith(("csrc/cpu", "csrc/cuda", "csrc/include")) else path.parts[1].removesuffix(".py")
    room = {"csrc/embedding": "embedding", "csrc/planner": "espresso"}.get("/".join(path.parts[:2]), room)
    room = path.parts[2] if room == "papers" else room

    def distance(test: str) -> tuple[object, ...]:
        parts = PurePosixPath(test).parts
        own = parts[-1] in (f"test_{family}.py", f"test_{path.stem}.py")
        return test.startswith(LAST), not own, room not in parts, steps[test], checkout.size(test), test

    return sorted(steps, key=distance)
