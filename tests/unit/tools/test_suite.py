"""All phases run, though one fails; what failed, what was skipped and where the time went stands at the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[3] / "tools"
MAKE = """
import os, pathlib, sys, time
phase = sys.argv[1]
print("this is", phase, flush=True)
results = pathlib.Path(os.environ["TEST_RESULTS"], "results.xml")
if phase == "unit":
    case = '<testcase file="tests/unit/a/b/test_it.py" classname="tests.unit.a.b.test_it" name="test_%s" time="%d">%s'
    ends = [("good", 3, ""), ("bad", 1, "<failure/>"), ("gpu", 0, "<skipped message='no GPU'/>")]
    results.write_text("<testsuite>" + "".join(case % end + "</testcase>" for end in ends) + "</testsuite>")
    sys.exit(2)
if phase == "sanitize":
    sys.exit(3)
if phase == "torn":
    results.write_text("<testsuite><testcase")
if phase == "long":
    time.sleep(1000)
"""
SUMMARY = """
==> summary
seconds and tests by folder, as long as workers took:
     4.0 s      3  tests/unit/a

the 3 slowest tests:
     3.0 s  tests/unit/a/b/test_it.py::test_good
     1.0 s  tests/unit/a/b/test_it.py::test_bad
     0.0 s  tests/unit/a/b/test_it.py::test_gpu

skipped:
    1  no GPU

lint            ok                               N s
unit            failed with exit code 2          N s   1 passed, 1 failed, 1 skipped
sanitize        failed with exit code 3          N s
torn            ok                               N s   0 passed, 1 failed, 0 skipped

failed:
  unit: tests/unit/a/b/test_it.py::test_bad
  sanitize: failed with exit code 3
  torn: results: its result file is cut off

1 passed, 3 failed, 1 skipped
"""


def test_every_folder_of_tests_is_in_a_phase() -> None:
    text = (TOOLS.parent / "Makefile").read_text()
    lists = {
        name: words.split()
        for name, words in re.findall(
            r"^(\w+) = (?:\$\(wildcard )?([\w /-]+)(?: \$\(GUESTS\)|\))?$", text, re.MULTILINE
        )
    }
    assert lists["PHASES"] == ["lint", "types", "unit", "sanitize", "parallel"]
    assert lists["REST_PHASES"] == re.findall(r"^([\w]+-rest):", text, re.MULTILINE)
    folders = {file.relative_to(TOOLS.parent).parts[1] for file in TOOLS.parent.glob("tests/*/**/test_*.py")}
    by_programs = {"parallel", "player"}  # launches.py, sanitize.py
    guests = {Path(folder).name for folder in lists["GUESTS"]}
    assert folders - guests == {Path(folder).name for folder in lists["TESTS"]} | by_programs


def start(folder: Path, *phases: str) -> subprocess.Popen[str]:
    """Run phases in a checkout that has the tools, and a program instead of make."""
    (folder / "tools").mkdir()
    for name in ("suite.py", "results.py", "progress.py"):
        (folder / "tools" / name).write_text((TOOLS / name).read_text())
    (folder / "make.py").write_text(MAKE)
    command = [sys.executable, "tools/suite.py", f"{sys.executable} make.py", *phases]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_all_phases_run_though_one_fails(tmp_path: Path) -> None:
    process = start(tmp_path, "lint", "unit", "sanitize", "torn")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert [line for line in output.splitlines() if line.startswith("this is")] == [
        "this is lint",
        "this is unit",
        "this is sanitize",
        "this is torn",
    ]
    assert re.sub(r" \d+ s(?=   |\n)", " N s", output).endswith(SUMMARY), output


def test_an_interrupt_ends_the_phase_and_says_so(tmp_path: Path) -> None:
    process = start(tmp_path, "lint", "long", "unit")
    assert process.stdout is not None
    assert any(line == "this is long\n" for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert re.search(r"^long +interrupted +\d+ s$", output, re.MULTILINE), output
    assert "this is unit" not in output


def test_phases_that_pass_end_with_0(tmp_path: Path) -> None:
    process = start(tmp_path, "lint", "types")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert output.endswith("\n0 passed, 0 failed, 0 skipped\n")
