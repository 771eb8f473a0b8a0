"""Run phases one after the other, though one fails, and say at the end what failed, what was skipped, and why.

run_phases.py MAKE PHASE...: runs `MAKE PHASE` for each, with TEST_RESULTS naming the folder in which its tests leave
their results (tools/outcomes.py). The last line holds the numbers of all phases; a phase that fails and names no
test counts as one failure.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import outcomes
import process_tree
import progress
from outcomes import Results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
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
    results: Results

    @property
    def failures(self) -> list[str]:
        if self.ending == "ok":
            return []
        return [f"{self.name}: {name}" for name in self.results.failed] or [f"{self.name}: {self.ending}"]


def main() -> None:
    make, *names = sys.argv[1:]
    process_tree.adopt_orphans()
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
    try:
        code = process_tree.run(command, env)
    except KeyboardInterrupt:
        return INTERRUPTED
    return "ok" if code == 0 else f"failed with exit code {code}"


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
