"""Commands whose output is passed on while they run, and told by its last line where they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame.store import ROOT


class CommandError(Exception):
    """A command has failed, or was ended at its limit."""


@dataclass(frozen=True)
class Ended:
    """How a command has ended.

    Attributes:
        status: its exit status; None where it was ended at its limit.
        output: of stdout and stderr.
    """

    status: int | None
    output: str

    @property
    def told(self) -> str:
        """Return the status and the last line."""
        last = (self.output.strip().splitlines() or ["silent"])[-1].strip()
        return f"ended at its limit: {last}" if self.status is None else f"exit status {self.status}: {last}"


def run(
    words: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    alone: bool = False,
    say: Callable[[str], object] | None = None,
) -> Ended:
    """Run a command in the root of the checkout.

    Args:
        environment: added to this process's.
        limit_s: seconds after which it is killed.
        alone: whether it has a process group of its own, so that what it has started is killed with it.
        say: takes each line of its output; without it they are printed.
    """
    with subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, **(environment or {})}, preexec_fn=os.setpgrp if alone else None,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        killed = threading.Event()
        kill = threading.Timer(threading.TIMEOUT_MAX if limit_s is None else limit_s, _kill, (process, alone, killed))
        kill.daemon = True
        kill.start()
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            (say or _print)(line)
        status = process.wait()
        kill.cancel()
    return Ended(None if killed.is_set() else status, "".join(lines))


def _kill(process: subprocess.Popen[str], alone: bool, killed: threading.Event) -> None:
    killed.set()
    with suppress(ProcessLookupError):
        if alone:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _print(line: str) -> None:
    print(line, end="", flush=True)


def require(words: Sequence[str], **options: object) -> str:
    """Run a command as run() does, and return its output. Raises CommandError where it fails."""
    ended = run(words, **options)  # type: ignore[arg-type]
    if ended.status != 0:
        raise CommandError(f"{Path(words[0]).name}: {ended.told}")
    return ended.output
