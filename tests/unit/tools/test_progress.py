"""What set-up shows of a long command, and of one that fails."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.tools.processes import heed_sigint, is_running


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    return importlib.import_module("progress")


def test_success_is_one_title_and_its_time(
    progress: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.run("greeting", [sys.executable, "-c", "print('hello')"], tmp_path / "log")
    assert "greeting: done in 0:0" in capsys.readouterr().out
    assert "hello\n" in (tmp_path / "log").read_text()


def test_failure_shows_the_end_of_the_log(progress: ModuleType, tmp_path: Path) -> None:
    program = "print(*range(1000), sep='\\n', flush=True); raise SystemExit(3)"
    with pytest.raises(progress.StepError, match=r"counting failed \(exit code 3\)") as error:
        progress.run("counting", [sys.executable, "-c", program], tmp_path / "log")
    shown = str(error.value).splitlines()
    assert "999" in shown
    assert "0" not in shown


COMPILER_OUTPUT = r"""
print("error: subprocess-exited-with-error")
for number in range(100):
    print("compiling", number)
print("a.cpp:3:1: error: no such type")
for number in range(100):
    print("b.cpp:4:1: error: another one")
print("ERROR: Failed building wheel for it")
raise SystemExit(1)
"""


def test_failure_ends_with_the_first_error_and_where_it_stands(progress: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier step: error: was mended\n")
    with pytest.raises(progress.StepError) as error:
        progress.run("compiling", [sys.executable, "-c", COMPILER_OUTPUT], log)
    where, what = str(error.value).splitlines()[-2:]
    assert what == "a.cpp:3:1: error: no such type"
    lines = log.read_text().splitlines()
    number = lines.index(what) + 1
    assert where == f"The first error, in line {number} of {log}:"


def test_failure_without_an_error_ends_with_the_log(progress: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(progress.StepError) as error:
        progress.run("failing", [sys.executable, "-c", "raise SystemExit(2)"], tmp_path / "log")
    assert str(error.value).splitlines()[-1] == f"The whole output is in {tmp_path / 'log'}"


# Starts what has its own temporary file and a child that would go on for long.
LONG = """
import os, subprocess, sys, tempfile
file = tempfile.NamedTemporaryFile()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pids", os.getpid(), child.pid, flush=True)
child.wait()
"""
INNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import progress
progress.main(lambda: progress.run("long", [sys.executable, "-c", sys.argv[3]], Path(sys.argv[2], "log")))
"""
OUTER = """
import sys
sys.path.insert(0, sys.argv[1])
import progress
progress.main(lambda: sys.exit(progress.call([sys.executable, "-c", sys.argv[4], *sys.argv[1:4]])))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_process_and_no_temporary_file(tmp_path: Path, number: int) -> None:
    tools, log = Path(__file__).parents[3] / "tools", tmp_path / "log"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    setup = subprocess.Popen(
        [sys.executable, "-c", OUTER, str(tools), str(tmp_path), LONG, INNER],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    )
    pids = wait_for_pids(log)
    assert list(tmp_path.glob("tmp-*/*"))  # its temporary file, beside the log
    setup.send_signal(number)
    _, complaints = setup.communicate(timeout=600)
    assert setup.returncode != 0
    assert "Traceback" not in complaints
    assert "interrupted" in complaints
    while any(map(is_running, pids)):  # what was killed may take a moment to be gone
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.glob("tmp-*")) == []


# A signal that comes as the command has just been started, and a second one as the command is being ended.
AT_ONCE = """
import os, signal, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import progress
start, end = subprocess.Popen, progress._end
def popen(*words, **options):
    process = start(*words, **options)
    Path(sys.argv[2], "pid").write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGINT)
    return process
def end_interrupted(process):
    os.kill(os.getpid(), signal.SIGTERM)
    end(process)
subprocess.Popen, progress._end, progress.GRACE_S = popen, end_interrupted, 1.0
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
progress.main(lambda: progress.run("ignoring", [sys.executable, "-c", ignoring], Path(sys.argv[2], "log")))
"""


def test_a_command_is_ended_whenever_signals_come(tmp_path: Path) -> None:
    tools = Path(__file__).parents[3] / "tools"
    setup = subprocess.run(
        [sys.executable, "-c", AT_ONCE, str(tools), str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=heed_sigint,
        check=False,
    )
    assert setup.returncode != 0
    while is_running(int((tmp_path / "pid").read_text())):
        time.sleep(0.05)
    assert list(tmp_path.glob("tmp-*")) == []


def test_under_nohup_a_hangup_changes_nothing(tmp_path: Path) -> None:
    program = "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import progress; " + (
        "progress.main(lambda: (os.kill(os.getpid(), signal.SIGHUP), print('goes on')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parents[3] / "tools")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def wait_for_pids(log: Path) -> list[int]:
    while (found := re.search(r"^pids (\d+) (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)) is None:
        time.sleep(0.05)
    return [int(pid) for pid in found.groups()]
