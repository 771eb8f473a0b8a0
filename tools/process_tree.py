"""Run a command, and end it with all that it has started when this program is told to end.

process_tree.py COMMAND...: ends with the exit code of COMMAND, or with 130 after SIGINT, SIGTERM or SIGHUP. make and
shells pass none of them on to what their children have started, and jobs of tests have sessions of their own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import progress

GRACE_S = 30.0  # between interrupting a command and killing it
INTERRUPTED = 130
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    adopt_orphans()
    try:
        code = run(sys.argv[1:])
    except FileNotFoundError as error:
        raise progress.StepError(f"{error.filename} is not there: run this through make") from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(code if code >= 0 else 128 - code)


def adopt_orphans() -> None:
    """Let what loses its parent below this process become a child of this one, so that end() finds it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a command to its end, and return its exit code, negative for a signal. After adopt_orphans() only.

    An interrupt ends it with all that it has started, and then rises.
    """
    with progress.uninterrupted() as deliver:
        # In a session of its own, whose processes can be told to end, and which no terminal tells beside us.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=deliver
        )
        try:
            deliver()
            process.returncode = _code(process.pid)
        except KeyboardInterrupt:
            with progress.uninterrupted():
                end(process, signal.SIGINT, GRACE_S)
            raise
    return process.returncode


def end(process: subprocess.Popen[bytes], number: int, grace_s: float) -> None:
    """End a command that has a session of its own, and all that it has started, in whatever session.

    Args:
        number: of the signal that its process group gets first.
        grace_s: how long the command then may take to end by itself.
    """
    if process.poll() is None:
        os.killpg(process.pid, number)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    while children := _children():  # what loses its parent comes to us
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _code(command: int) -> int:
    """Wait for a command, and meanwhile for orphans that end; return its exit code."""
    while True:
        pid, status = os.wait()
        if pid == command:
            return os.waitstatus_to_exitcode(status)


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


if __name__ == "__main__":
    progress.main(main)
