"""Run a long command with its output in a log, and show on the screen what happens and for how long."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

REDRAW_S = 0.5  # on a terminal, one line that is redrawn
REPEAT_S = 20.0  # elsewhere (a CI log), a new line now and then shows that it is alive
TAIL_LINES = 30
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0  # between asking a command to end and killing it

ERROR = re.compile(r"\berror\b\s*:|CMake Error|\bERROR\b")
# What pip says of a build that failed stands above the build's own output, and says nothing.
PIPS_OWN = ("subprocess-exited-with-error", "failed-wheel-build", "Failed building wheel", "Failed to build")


class StepError(Exception):
    """Something that the person at the keyboard has to know; shown as one message, without a traceback."""


def main(program: Callable[[], None]) -> None:
    """Run a program of set-up or of the tests; a signal that ends it ends what it has started, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        program()
    except StepError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def run(title: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run `command`, its output appended to `log`; raise StepError with the end of its output if it fails.

    The command's temporary files lie next to the log, and are removed when it ends.
    """
    with begun(command, log, env) as finish:
        finish(title)


@contextmanager
def begun(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Callable[[str], None]]:
    """Begin what run() runs: call what is yielded, with a title, to wait for it. Else it ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=log.parent, ignore_cleanup_errors=True) as scratch:
        env = {**(os.environ if env is None else env), "TMPDIR": scratch}
        with log.open("a") as output:
            print("+", *command, file=output, flush=True)
            begin = output.tell()
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
                start_new_session=True,
            )  # fmt: skip

        def finish(title: str) -> None:
            start = time.monotonic()
            code = _watch(title, process, start)
            if code != 0:
                raise StepError(f"{title} failed (exit code {code}).\n\n{_tail(log)}\n{_first_error(log, begin)}")
            print(f"{_line_start()}  {title}: done in {_clock(start)}", flush=True)

        try:
            yield finish
        finally:
            if process.poll() is None:
                end_group(process, signal.SIGTERM, GRACE_S)


def call(command: Sequence[str | Path]) -> int:
    """Run a program that shows its own progress and ends what it starts; return its exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def end_group(process: subprocess.Popen[bytes], number: int, grace_s: float) -> None:
    """Send a signal to the process group that a command leads, and kill what of it is left after `grace_s`, or after
    another interrupt."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(grace_s)
    with suppress(ProcessLookupError):  # where nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def adopt_orphans() -> None:
    """Let what loses its parent below this process become a child of this one, so that end_orphans() finds it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_orphans() -> None:
    """Kill what a command that has ended has left, in whatever session; after adopt_orphans()."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def acquire(lock: int, what: str) -> None:
    """Lock an open file, and say so where another process holds it, rather than do the same work twice."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"  {what}; waiting for it", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _watch(title: str, process: subprocess.Popen[bytes], start: float) -> int:
    interval = REDRAW_S if sys.stdout.isatty() else REPEAT_S
    while True:
        end = "" if sys.stdout.isatty() else "\n"
        print(f"{_line_start()}  {title} ... {_clock(start)}", end=end, flush=True)
        try:
            return process.wait(timeout=interval)
        except subprocess.TimeoutExpired:
            continue


def _line_start() -> str:
    return "\r\033[K" if sys.stdout.isatty() else ""


def _clock(start: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - start), 60)
    return f"{minutes}:{seconds:02d}"


def _tail(log: Path) -> str:
    with log.open(errors="replace") as lines:
        return "".join(deque(lines, TAIL_LINES))


def _first_error(log: Path, begin: int) -> str:
    """Say where the log of this command, from byte `begin` on, first tells of an error, and what."""
    number = 0
    with log.open("rb") as lines:
        for line in lines:
            number += 1
            text = line.decode(errors="replace").strip()
            if lines.tell() > begin and ERROR.search(text) and not any(words in text for words in PIPS_OWN):
                return f"The first error, in line {number} of {log}:\n{text}"
    return f"The whole output is in {log}"
