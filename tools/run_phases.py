"""Run phases one after the other, though one fails, and say at the end what failed, what was skipped, and why.

run_phases.py MAKE PHASE...: runs `MAKE PHASE` for each, with TEST_RESULTS naming the folder in which its tests leave
their results (tools/outcomes.py). The last line holds the numbers of all phases; a phase that fails and names no
test counts as one failure.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import outcomes
import progress
from outcomes import Results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
GRACE_S = 30.0  # between interrupting a phase and killing it
INTERRUPTED = "interrupted"
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Phase:
    """One that has ended.

    Attributes:
        ending: "ok", or how it failed.
    """

    name: str
    ending: str
    seconds: float
    results: Results

    @property
    def failures(self) -> list[str]:
        if self.ending == "ok":
            return []
        return [f"{self.name}: {name}" for name in self.results.failed] or [f"{self.name}: {self.ending}"]


def main() -> None:
    make, *names = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    shutil.rmtree(RESULTS, ignore_errors=True)
    ended: list[Phase] = []
    for name in names:
        ended.append(_run(shlex.split(make), name))
        if ended[-1].ending == INTERRUPTED:
            break
    print(summary(ended), flush=True)
    sys.exit(130 if ended[-1].ending == INTERRUPTED else int(any(phase.failures for phase in ended)))


def _run(make: Sequence[str], name: str) -> Phase:
    """Run a phase and frame its output."""
    folder = RESULTS / name
    folder.mkdir(parents=True)
    env = {**os.environ, "TEST_RESULTS": str(folder)}
    print(f"\n==> {name}", flush=True)
    start = time.monotonic()
    ending = _ending([*make, name], env)
    seconds = time.monotonic() - start
    print(f"<== {name}: {ending} in {seconds:.0f} s", flush=True)
    return Phase(name, ending, seconds, outcomes.read(folder))


def _ending(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Run a phase to its end, or end it; return which of the two, in words."""
    with progress.uninterrupted() as deliver:
        # In a session of its own, whose processes can be told to end, and which no terminal tells beside us.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=deliver
        )
        try:
            deliver()
            code = process.returncode = _code(process.pid)
            return "ok" if code == 0 else f"failed with exit code {code}"
        except KeyboardInterrupt:
            with progress.uninterrupted():
                _end(process)
            return INTERRUPTED


def _code(phase: int) -> int:
    """Wait for a phase, and meanwhile for orphans that end; return its exit code."""
    while True:
        pid, status = os.wait()
        if pid == phase:
            return os.waitstatus_to_exitcode(status)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a phase and all that it has started, in whatever session."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    while children := _children():  # what loses its parent comes to us
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(path.parent.name))
    return found


def summary(phases: Sequence[Phase]) -> str:
    """Return the closing lines."""
    total, lines = Results(), ["", "==> summary"]
    for phase in phases:
        counted = phase.results.line() if phase.results != Results() else ""
        lines.append(f"{phase.name:<14}{phase.ending:<28}{phase.seconds:6.0f} s   {counted}".rstrip())
        total.add(phase.results)
    failures = [failure for phase in phases for failure in phase.failures]
    if failures:
        lines += ["", "failed:", *(f"  {failure}" for failure in failures)]
    if total.skipped:
        lines += ["", "skipped:", *(f"{count:5}  {reason}" for reason, count in total.skipped.most_common())]
    return "\n".join([*lines, "", Results(total.passed, failures, total.skipped).line()])


if __name__ == "__main__":
    progress.main(main)
