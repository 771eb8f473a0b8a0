"""What ends make, or a program of its recipes, ends all that these have started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.tools.processes import heed_sigint, is_running

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300.0
"""Only what hangs takes so long."""
# Starts what has a session of its own and heeds nobody, as jobs of tests may, and goes on for long.
LONG = """
import os, pathlib, subprocess, sys, time
ignoring = "import signal as s, time; [s.signal(n, s.SIG_IGN) for n in (1, 2, 15)]; print(flush=True); time.sleep(600)"
def work():
    child = subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.read(1)
    draft = pathlib.Path(os.environ["PIDS"] + ".draft")
    draft.write_text(f"{os.getpid()} {child.pid}")
    draft.replace(os.environ["PIDS"])
    time.sleep(600)
"""
TEST = "def test_long(): work()"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile and its tools, in a checkout where set-up has nothing to do, and whose one test goes on for long."""
    for name in ("Makefile", "tools", ".ci"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "tools" / "setup_env.py").write_text("")
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    tests = tmp_path / "tests" / "unit"
    tests.mkdir(parents=True)
    (tests / "test_it.py").write_text(LONG + TEST)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("cmake", "ruff", "mypy", "clang-format"):
        (programs / name).write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return tmp_path


def started(command: Sequence[str | Path], folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a program, and wait until its long work has begun; return it, and the processes of that."""
    pids, log = folder / "pids", folder / "log"
    environment = {**os.environ, "PIDS": str(pids), "PYTHON": sys.executable, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTEST_ADDOPTS"] = "-p xdist"
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TEST_RESULTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=heed_sigint,
        )  # fmt: skip
    limit_s = time.monotonic() + LIMIT_S
    while not pids.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < limit_s, log.read_text()
        time.sleep(0.05)
    return process, [int(pid) for pid in pids.read_text().split()]


def require_end(process: subprocess.Popen[bytes], pids: Sequence[int]) -> None:
    """Raise AssertionError where a process has not ended with another one. What is left is ended."""
    try:
        assert process.wait(LIMIT_S) != 0
        limit_s = time.monotonic() + 10  # what was killed may take a moment to be gone
        while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < limit_s:
            time.sleep(0.05)
        assert not left
    finally:
        process.kill()
        process.wait()
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "number"),
    [("make test", signal.SIGTERM), ("make unit", signal.SIGTERM), (".ci/run", signal.SIGTERM),
     (".ci/run", signal.SIGINT)],
)  # fmt: skip
def test_a_signal_to_make_ends_its_tests_with_what_they_have_started(
    command: str, number: signal.Signals, checkout: Path
) -> None:
    """To that process alone. SIGINT make leaves to its terminal, which sends it to all."""
    process, pids = started(command.split(), checkout)
    process.send_signal(number)
    require_end(process, pids)


def test_a_signal_to_make_ends_set_up(checkout: Path) -> None:
    (checkout / "tools" / "setup_env.py").write_text(LONG.replace("start_new_session=True, ", "") + RUNS_LONG)
    process, pids = started(["make", "setup"], checkout)
    process.send_signal(signal.SIGTERM)
    require_end(process, pids)


RUNS_LONG = """
import progress
inner = pathlib.Path("inner.py")
inner.write_text(pathlib.Path(__file__).read_text().partition("import progress")[0] + "work()")
if __name__ == "__main__":
    progress.main(lambda: progress.run("long", [sys.executable, inner], pathlib.Path("setup.log")))
"""


def test_a_signal_to_the_parallel_tests_ends_a_launch_with_all_that_it_has_started(checkout: Path) -> None:
    """Also where the launcher leaves its ranks behind."""
    launcher = checkout / ".venv" / "bin" / "mpirun"
    launcher.write_text(f"#!{sys.executable}\n{LONG}\nwork()\n")
    launcher.chmod(0o755)
    process, pids = started(["make", "test-parallel"], checkout)
    process.send_signal(signal.SIGTERM)
    require_end(process, pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_tree(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG + "work()")
    process, pids = started([sys.executable, ROOT / "tools" / "process_tree.py", sys.executable, "long.py"], tmp_path)
    process.send_signal(number)
    require_end(process, pids)
    assert process.returncode == 130


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_that_of_the_command(ends: str, code: int) -> None:
    command = [sys.executable, ROOT / "tools" / "process_tree.py", sys.executable, "-c", f"import os, sys; {ends}"]
    assert subprocess.run(command, check=False).returncode == code


def test_a_command_that_is_not_there_is_named() -> None:
    command = [sys.executable, ROOT / "tools" / "process_tree.py", "no-such-program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no-such-program is not there" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_shell_stands_between_make_and_what_takes_long() -> None:
    """It would die of make's SIGTERM by itself."""
    lines = re.findall(r"^\t@(?:python=\S+ && )?(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    long = [line for line in lines if re.search(r"\b(python|pytest|cmake|mpirun|mypy)\b.*\.py|-m pytest|cmake ", line)]
    assert len(long) >= 13
    assert [line for line in long if not line.startswith("exec ")] == []
