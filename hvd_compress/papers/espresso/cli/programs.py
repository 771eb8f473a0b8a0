"""Running a program that is to be watched, and ending it with all that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.cli import descendants

POLL_S = 0.2
"""How often it is looked whether what a program is to find is complete."""
END_S = 60.0
"""How long a program that was asked to end may take."""


def run_program(
    program: Sequence[str], environment: Mapping[str, str], complete: Callable[[], bool], stop: bool
) -> tuple[int, bool]:
    """Run a program to its end, or until what it is to find is complete.

    Returns its exit code, and whether it was stopped. Raises ConfigError where it cannot be started.
    """
    try:
        process = subprocess.Popen(program, env=environment)
    except OSError as error:
        raise ConfigError(f"cannot run {program[0]!r}: {error.strerror}") from None
    with _ended(process):
        while True:
            try:
                status = process.wait(POLL_S if stop else None)
                return (status if status >= 0 else 128 - status), False
            except subprocess.TimeoutExpired:
                if complete():
                    return 0, True


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """After the block the process and what it started have ended, whatever ends this one. Ctrl-C reaches them."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except KeyboardInterrupt:
        process.wait()
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            started = descendants.below(process.pid)
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            descendants.end(started, END_S)
