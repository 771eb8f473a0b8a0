"""What pytest's result files (--junitxml) say: how many tests passed, which failed, how many were skipped, and why.

The files of one folder are the ranks of one run: a test counts once, by its worst outcome. Folders in it are runs of
their own, whose names stand before the names of their tests.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PASSED, SKIPPED, FAILED = range(3)  # from the best outcome to the worst


@dataclass
class Results:
    """Of some tests.

    Attributes:
        passed: how many.
        failed: their names, as pytest takes them.
        skipped: how many, by reason.
    """

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Results) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def line(self) -> str:
        """Return the numbers, as CI reads them."""
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped.total()} skipped"


def wanted() -> Path | None:
    """Return the folder in which results are to be left, if they are."""
    folder = os.environ.get("TEST_RESULTS")
    return Path(folder) if folder else None


def read(folder: Path, run: str = "") -> Results:
    """Return the results in a folder; none where it is not there.

    Args:
        run: what stands before the names of tests.
    """
    worst: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.glob("*.xml")):
        for case in _cases(path):
            name = _name(case)
            worst[name] = max(worst.get(name, (PASSED, "")), _outcome(case))
    found = Results(
        sum(outcome == PASSED for outcome, _ in worst.values()),
        [f"{run}{name}" for name, (outcome, _) in worst.items() if outcome == FAILED],
        Counter(reason for outcome, reason in worst.values() if outcome == SKIPPED),
    )
    for inner in sorted(path for path in folder.glob("*") if path.is_dir()):
        found.add(read(inner, f"{run}{inner.name}: "))
    return found


def failed(folder: Path, words: str) -> None:
    """A run has failed: where none of its tests tells, leave it in words in the folder of its results."""
    if not read(folder).failed:
        _write(folder, _case(words, "error"))


def skipped(folder: Path, name: str, reason: str) -> None:
    """A run was left out: leave it, and why, in the folder of its results."""
    _write(folder, _case(name, "skipped", reason))


def _write(folder: Path, case: ElementTree.Element) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(case).write(folder / "run.xml")


def _case(name: str, outcome: str, reason: str = "") -> ElementTree.Element:
    case = ElementTree.Element("testcase", name=name)
    ElementTree.SubElement(case, outcome, message=reason)
    return case


def _cases(file: Path) -> list[ElementTree.Element]:
    try:
        return list(ElementTree.parse(file).iter("testcase"))
    except ElementTree.ParseError:  # its writer was killed
        return [_case(f"{file.name} breaks off", "error")]


def _name(case: ElementTree.Element) -> str:
    """Return what pytest calls it: FILE::CLASS::TEST."""
    file, name, inside = case.get("file", ""), case.get("name", ""), case.get("classname", "")
    if not inside:  # a file that could not be imported, or no test at all
        return file or name
    classes = inside.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".").replace(".", "::")
    return "::".join(part for part in (file, classes, name) if part)


def _outcome(case: ElementTree.Element) -> tuple[int, str]:
    """Return it, and why the test was skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED, ""
    skipped = case.find("skipped")
    return (PASSED, "") if skipped is None else (SKIPPED, skipped.get("message", ""))
