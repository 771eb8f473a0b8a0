"""All phases run, though one fails; what failed and what was skipped stands at the end; an interrupt ends all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.tools.processes import is_running, named

ROOT = Path(__file__).resolve().parents[3]
MAKE = """
import os, pathlib, signal, subprocess, sys, time
phase = sys.argv[1]
print("this is", phase, flush=True)
results = pathlib.Path(os.environ["TEST_RESULTS"], "results.xml")
if phase == "unit":
    case = '<testcase file="tests/test_it.py" classname="tests.test_it" name="test_%s">%s</testcase>'
    ends = {"good": "", "bad": "<failure/>", "gpu": "<skipped message='no GPU'/>"}
    results.write_text("<testsuite>" + "".join(case % end for end in ends.items()) + "</testsuite>")
    sys.exit(2)
if phase == "sanitize":
    os.kill(os.getpid(), signal.SIGKILL)
if phase == "long":
    ignoring = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(1000)"
    stubborn = subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True)
    print("pids", os.getpid(), stubborn.pid, flush=True)
    time.sleep(1000)
"""


AT_ONCE = """
import os, signal, subprocess
start = subprocess.Popen
def popen(*words, **options):
    process = start(*words, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return process
subprocess.Popen = popen
"""


def start(folder: Path, *phases: str, first: str = "") -> subprocess.Popen[str]:
    """Run phases in a checkout that has the tools, and a program in the place of make; `first` is run before."""
    (folder / "tools").symlink_to(ROOT / "tools")
    (folder / "make.py").write_text(MAKE)
    (folder / "run.py").write_text(
        f"{first}\nimport pathlib, sys\nsys.path.insert(0, 'tools')\nimport progress, run_phases\n"
        "run_phases.RESULTS = pathlib.Path('results').resolve()\nprogress.main(run_phases.main)\n"
    )
    words = [sys.executable, "run.py", f"{sys.executable} {folder}/make.py", *phases]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_all_phases_run_and_the_end_says_what_failed_and_what_was_skipped(tmp_path: Path) -> None:
    phases = start(tmp_path, "lint", "unit", "sanitize", "test-parallel")
    output, _ = phases.communicate()
    assert phases.returncode == 1
    lines = output.splitlines()
    for phase in ("lint", "unit", "sanitize", "test-parallel"):
        assert lines.index(f"==> {phase}") < lines.index(f"this is {phase}") < lines.index("==> summary")
    end = lines[lines.index("==> summary") :]
    rows = {line.split()[0]: line for line in end[1:5]}
    assert " ok " in rows["lint"]
    assert rows["lint"].endswith(" s")
    assert "failed with exit code 2" in rows["unit"]
    assert rows["unit"].endswith("1 passed, 1 failed, 1 skipped")
    assert "failed with exit code -9" in rows["sanitize"]
    assert " ok " in rows["test-parallel"]
    named = end[end.index("failed:") + 1 : end.index("failed:") + 3]
    assert named == ["  unit: tests/test_it.py::test_bad", "  sanitize: failed with exit code -9"]
    assert end[end.index("skipped:") + 1].split() == ["1", "no", "GPU"]
    assert end[-1] == "1 passed, 2 failed, 1 skipped"


def test_where_nothing_fails_nothing_is_listed(tmp_path: Path) -> None:
    phases = start(tmp_path, "lint", "types")
    output, _ = phases.communicate()
    assert phases.returncode == 0
    assert "failed:" not in output
    assert "skipped:" not in output
    assert output.splitlines()[-1] == "0 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_phase_with_all_that_it_started_and_says_what_was_done(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Also what has a session of its own and heeds nobody, as jobs of tests may."""
    phases = start(tmp_path, "unit", "long", "lint")
    assert phases.stdout is not None
    pids = next(line.split()[1:] for line in phases.stdout if line.startswith("pids"))
    phases.send_signal(number)
    output, _ = phases.communicate()
    assert phases.returncode == 130
    while any(is_running(int(pid)) for pid in pids):
        time.sleep(0.05)
    assert "this is lint" not in output
    assert "long          interrupted" in output
    assert "  unit: tests/test_it.py::test_bad\n  long: interrupted\n" in output
    assert output.splitlines()[-1] == "1 passed, 2 failed, 1 skipped"


def test_an_interrupt_that_comes_with_the_start_of_a_phase_ends_it(tmp_path: Path) -> None:
    phases = start(tmp_path, "long", first=AT_ONCE)
    output, _ = phases.communicate()
    assert phases.returncode == 130
    assert output.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert named(str(tmp_path)) == []


def test_reasons_are_grouped_over_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import run_phases
    from outcomes import Results

    first = run_phases.Phase("unit", "ok", 430.6, Results(5, [], Counter({"no nvcc here": 2, "needs root": 19})))
    second = run_phases.Phase("sanitize", "ok", 151.0, Results(3, [], Counter({"no nvcc here": 2})))
    lines = run_phases.summary([first, second]).splitlines()
    assert lines[-4:-2] == ["   19  needs root", "    4  no nvcc here"]
    assert lines[-1] == "8 passed, 0 failed, 23 skipped"


def test_make_test_runs_every_phase() -> None:
    """And each of them is a target of its own."""
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if "tools/run_phases.py" in line]
    phases = line.partition('--no-print-directory"')[2].split()
    assert phases == ["lint", "types", "unit", "sanitize", "test-parallel"]
    assert all(f"\n{phase}: " in makefile for phase in phases)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
