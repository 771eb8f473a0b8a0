"""What the tests of this folder need of processes."""

from __future__ import annotations

import signal
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only the entry of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # as it ends
        return False


def named(words: str) -> list[int]:
    """Return the processes on whose command line these words are."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words.encode() in command:
            found.append(int(path.parent.name))
    return found


def heed_sigint() -> None:
    """For a new process: a shell's background jobs ignore SIGINT and those under nohup SIGHUP, these tests too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
