"""Horovod's background thread, which polls for ever, gives way where gradients travel among hosts without it.

It compares notes with all ranks every millisecond (HOROVOD_CYCLE_TIME), and over MPI polls until all have answered: on
cores that the training needs it takes 10 to 60 % of a step (benchmarks/results/waiting.md).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hvd_compress.frontends.horovod.runtime_selection import RUNTIME, hvd

_inits = hvd.init  # patch_horovod() puts ours in its place
_THREADS = Path("/proc/self/task")
_of_horovod: set[int] = set()


def init(*args: Any, **kwargs: Any) -> Any:
    """Start the runtime as its own init() does, and remember which threads Horovod has started."""
    before = _threads()
    try:
        return _inits(*args, **kwargs)
    finally:
        if RUNTIME == "horovod":
            _of_horovod.update(_threads() - before)


def give_way(niceness: int) -> None:
    """Let Horovod's threads have a core only where nobody else wants it, as a process of this niceness (Linux).

    It cannot be undone without rights, so the program's own operations of Horovod wait longer while all cores are busy.
    """
    for thread in _of_horovod & _threads():
        with suppress(OSError):  # it has ended since
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def _threads() -> set[int]:
    return {int(path.name) for path in _THREADS.iterdir()} if _THREADS.exists() else set()
