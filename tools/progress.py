"""Run a long command with its output in a log, and show on the screen what happens and for how long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

REDRAW_S = 0.5  # on a terminal, one line that is redrawn
REPEAT_S = 20.0  # elsewhere (a CI log), a new line now and then shows that it is alive
TAIL_LINES = 30


class StepError(Exception):
    """Something that the person at the keyboard has to know; shown as one message, without a traceback."""


def run(title: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run `command`, its output appended to `log`; raise StepError with the end of its output if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        print("+", *command, file=output, flush=True)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env)
    start = time.monotonic()
    try:
        code = _watch(title, process, start)
    except BaseException:  # Ctrl-C included: never leave a compiler running behind our back
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise StepError(f"{title} failed (exit code {code}). The end of {log}:\n\n{_tail(log)}")
    print(f"{_line_start()}  {title}: done in {_clock(start)}", flush=True)


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
