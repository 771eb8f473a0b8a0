"""The processes that a program has started, which its own end need not end: a shell passes no signal on."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

POLL_S = 0.05
PROC = Path("/proc")


def below(pid: int) -> list[int]:
    """Return the numbers of all processes below one, children first; none where the system has no /proc."""
    parents = _parents()
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def end(pids: list[int], limit_s: float) -> None:
    """End what is left of some processes: the uppermost by SIGTERM, so that a launcher ends its ranks; then by SIGKILL.

    Args:
        pids: as `below` returned them.
        limit_s: seconds that they have for it.
    """
    deadline = time.monotonic() + limit_s
    told: set[int] = set()
    while left := _running(pids):
        late = time.monotonic() > deadline
        for pid in left if late else [pid for pid, parent in left.items() if parent not in left and pid not in told]:
            told.add(pid)
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        if late:
            return  # what even that does not end, the kernel holds
        time.sleep(POLL_S)


def _running(pids: list[int]) -> dict[int, int]:
    """Return the parents of those that have not ended, by their numbers."""
    parents = _parents()
    return {pid: parents[pid] for pid in pids if pid in parents}


def _parents() -> dict[int, int]:
    """Return the parent of every process that has not ended."""
    found: dict[int, int] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(stat.parent.name)] = int(parent)
    return found
