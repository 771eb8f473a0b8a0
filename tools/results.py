"""Sum up pytest's result files (--junitxml): what failed, what was skipped and why, and where the time went.

results.py [FOLDER]: of the last `make test`, or of another folder that has a folder of result files for each phase.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

FOLDER = Path(__file__).resolve().parent.parent / "build" / "test-results"
SLOWEST = 40
FOLDER_PARTS = 3
"""Seconds are added up for tests/unit/frontends, and not for each folder in it."""


@dataclass(frozen=True)
class Case:
    """A test that has run.

    Attributes:
        name: as pytest takes it.
        file: in which it stands.
        outcome: "passed", "skipped" or "failed".
        reason: why it was skipped.
    """

    name: str
    file: str
    seconds: float
    outcome: str
    reason: str = ""


def read(folder: Path, files: str = "**/*.xml") -> list[Case]:
    """Return the tests of all result files in a folder; none where it is not there."""
    return [case for path in sorted(folder.glob(files)) for case in _cases(path)]


def _cases(path: Path) -> Iterator[Case]:
    try:
        root = ElementTree.parse(path)
    except ElementTree.ParseError:  # of a process that was ended while it wrote
        yield Case(f"{path.stem}: its result file is cut off", "", 0.0, "failed")
        return
    for element in root.iter("testcase"):
        file = element.get("file", "")
        # A module that cannot be imported has its dotted name as the name, and neither a class nor a file.
        inside = element.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
        name = "::".join(part for part in (file, inside, element.get("name", "")) if part)
        skipped = element.find("skipped")
        if element.find("failure") is not None or element.find("error") is not None:
            yield Case(name, file, float(element.get("time", 0)), "failed")
        elif skipped is not None:
            yield Case(name, file, float(element.get("time", 0)), "skipped", skipped.get("message") or "no reason")
        else:
            yield Case(name, file, float(element.get("time", 0)), "passed")


def leave_failure(folder: str | None, part: str, why: str) -> None:
    """Have a part of a phase that is no test counted as one that failed, in a result file of its own."""
    if folder is not None:
        suite = ElementTree.Element("testsuite")
        ElementTree.SubElement(ElementTree.SubElement(suite, "testcase", name=part), "failure", message=why)
        ElementTree.ElementTree(suite).write(Path(folder, f"{part.replace(' ', '-')}-failure.xml"))


def counted(cases: Sequence[Case], more_failures: int = 0) -> str:
    """Return the numbers, as CI reads them."""
    outcomes = Counter(case.outcome for case in cases)
    return f"{outcomes['passed']} passed, {outcomes['failed'] + more_failures} failed, {outcomes['skipped']} skipped"


def report(cases: Sequence[Case]) -> str:
    """Return the seconds by folder, the slowest tests, and why tests were skipped."""
    tests = [case for case in cases if case.file]
    return "\n\n".join(part for part in (_by_folder(tests), _slowest(tests), _skipped(tests)) if part)


def _by_folder(cases: Sequence[Case]) -> str:
    seconds: dict[str, list[float]] = {}
    for case in cases:
        seconds.setdefault("/".join(case.file.split("/")[:-1][:FOLDER_PARTS]), []).append(case.seconds)
    folders = sorted(seconds, key=lambda folder: -sum(seconds[folder]))
    lines = [f"{sum(seconds[folder]):8.1f} s {len(seconds[folder]):6}  {folder}" for folder in folders]
    return "\n".join(["seconds and tests by folder, as long as workers took:", *lines]) if lines else ""


def _slowest(cases: Sequence[Case]) -> str:
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines = [f"{case.seconds:8.1f} s  {case.name}" for case in slowest]
    return "\n".join([f"the {len(lines)} slowest tests:", *lines]) if lines else ""


def _skipped(cases: Sequence[Case]) -> str:
    reasons = Counter(case.reason for case in cases if case.outcome == "skipped")
    return (
        "\n".join(["skipped:", *(f"{count:5}  {reason}" for reason, count in reasons.most_common())]) if reasons else ""
    )


if __name__ == "__main__":
    found = read(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
    print(report(found), counted(found), sep="\n\n")
