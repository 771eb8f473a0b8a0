"""Run phases of the tests one after the other, though one fails, and sum up what they found.

suite.py MAKE PHASE...: runs `MAKE PHASE` for each, with TEST_RESULTS naming the folder in which its tests leave their
result files. The last line has the numbers of all phases; a phase that fails and names no test counts as one failure.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import progress
import results
from results import FOLDER, Case

GRACE_S = 30.0  # between interrupting a phase and killing it
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Phase:
    """One that has ended.

    Attributes:
        ending: "ok", or how it failed.
    """

    name: str
    ending: str
    seconds: float
    cases: list[Case]

    @property
    def failures(self) -> list[str]:
        named = [f"{self.name}: {case.name}" for case in self.cases if case.outcome == "failed"]
        return named or ([] if self.ending == "ok" else [f"{self.name}: {self.ending}"])


def main() -> None:
    make, *names = sys.argv[1:]
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    progress.adopt_orphans()
    ended: list[Phase] = []
    with FOLDER.with_suffix(".lock").open("w") as lock:
        progress.acquire(lock.fileno(), "other tests of this checkout run")
        shutil.rmtree(FOLDER, ignore_errors=True)
        for name in names:
            ended.append(_run(shlex.split(make), name))
            if ended[-1].ending == INTERRUPTED:
                break
    print(summary(ended), flush=True)
    sys.exit(130 if ended[-1].ending == INTERRUPTED else int(any(phase.failures for phase in ended)))


def _run(make: Sequence[str], name: str) -> Phase:
    """Run a phase and frame its output."""
    folder = FOLDER / name
    folder.mkdir(parents=True)
    print(f"\n==> {name}", flush=True)
    start = time.monotonic()
    ending = _ending([*make, name], {**os.environ, "TEST_RESULTS": str(folder)})
    seconds = time.monotonic() - start
    print(f"<== {name}: {ending} in {seconds:.0f} s", flush=True)
    return Phase(name, ending, seconds, results.read(folder))


def _ending(command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a phase to its end, or end it with its process group; return which of the two, in words."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        progress.end_group(process, signal.SIGINT, GRACE_S)
        return INTERRUPTED
    finally:
        progress.end_orphans()
    return "ok" if code == 0 else f"failed with exit code {code}"


def summary(phases: Sequence[Phase]) -> str:
    """Return the closing lines."""
    cases = [case for phase in phases for case in phase.cases]
    lines = ["", "==> summary", *([results.report(cases), ""] if cases else [])]
    for phase in phases:
        numbers = results.counted(phase.cases) if phase.cases else ""
        lines.append(f"{phase.name:<16}{phase.ending:<28}{phase.seconds:6.0f} s   {numbers}".rstrip())
    failures = [failure for phase in phases for failure in phase.failures]
    if failures:
        lines += ["", "failed:", *(f"  {failure}" for failure in failures)]
    named = sum(case.outcome == "failed" for case in cases)
    return "\n".join([*lines, "", results.counted(cases, len(failures) - named)])


if __name__ == "__main__":
    progress.main(main)
