"""What set-up shows of a long command, and of one that fails or is interrupted."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("progress")


def test_success_is_one_title_and_its_time(
    progress: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.run("greeting", [sys.executable, "-c", "print('hello')"], tmp_path / "log")
    assert "greeting: done in 0:0" in capsys.readouterr().out
    assert "hello\n" in (tmp_path / "log").read_text()


COMPILER_OUTPUT = r"""
print("error: subprocess-exited-with-error")
for number in range(100):
    print("compiling", number)
print("a.cpp:3:1: error: no such type")
for number in range(100):
    print("b.cpp:4:1: error: another one")
print("ERROR: Failed building wheel for it")
raise SystemExit(3)
"""


def test_failure_shows_the_end_of_the_log_and_the_first_error(progress: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier step: error: was mended\n")
    with pytest.raises(progress.StepError, match=r"compiling failed \(exit code 3\)") as error:
        progress.run("compiling", [sys.executable, "-c", COMPILER_OUTPUT], log)
    *shown, where, what = str(error.value).splitlines()
    assert "ERROR: Failed building wheel for it" in shown
    assert "compiling 0" not in shown
    assert what == "a.cpp:3:1: error: no such type"
    assert where == f"The first error, in line {log.read_text().splitlines().index(what) + 1} of {log}:"


def test_failure_without_an_error_ends_with_the_log(progress: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(progress.StepError) as error:
        progress.run("failing", [sys.executable, "-c", "raise SystemExit(2)"], tmp_path / "log")
    assert str(error.value).splitlines()[-1] == f"The whole output is in {tmp_path / 'log'}"


# Starts what has its own temporary file and a child that would go on for long, and heeds no SIGTERM.
LONG = """
import os, signal, subprocess, sys, tempfile
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = tempfile.NamedTemporaryFile()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pids", os.getpid(), child.pid, flush=True)
while True:
    child.wait()
"""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import progress
progress.GRACE_S = 1.0
progress.main(lambda: progress.run("long", [sys.executable, "-c", sys.argv[3]], Path(sys.argv[2], "log")))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process_and_no_temporary_file(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    setup = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(TOOLS), str(tmp_path), LONG],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # these tests may run under nohup
    )
    while (found := re.search(r"^pids (\d+) (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)) is None:
        time.sleep(0.05)
    setup.send_signal(number)
    _, complaints = setup.communicate(timeout=600)
    assert setup.returncode == 130
    assert "Traceback" not in complaints
    assert "interrupted" in complaints
    while any(map(is_running, map(int, found.groups()))):  # what was killed may take a moment to be gone
        time.sleep(0.05)
    assert list(tmp_path.glob("tmp-*")) == []


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only the entry of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # as it ends
        return False


def test_under_nohup_a_hangup_changes_nothing() -> None:
    program = "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import progress; " + (
        "progress.main(lambda: (os.kill(os.getpid(), signal.SIGHUP), print('goes on')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(TOOLS)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
