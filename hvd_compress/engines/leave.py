"""Leaving a process: what is left is ended while Python still works, and what will never finish ends with it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress

_ABORT_LIMIT_S = 10

_left: list[weakref.finalize[..., object]] = []
_aborts: list[Callable[[], object]] = []
_process: int | None = None
"""Whose exit it is: a process that it forks has neither its threads nor its place among the ranks."""
_ending = False


def at_end(owner: object, end: Callable[..., object], *arguments: object) -> Callable[[], object]:
    """Call `end` when `owner` is dropped, when what this returns is called, or else when the process ends; once.

    Unlike those of weakref.finalize, all such calls come before what was registered for the exit until the first of
    them, such as the clean-ups of MPI and Horovod; the latest is the first. And one that finds a failure may call
    fail_at_exit(): Python calls nothing that is registered while it leaves, and would then end daemon threads in the
    middle of a collective, and with them the process (std::terminate).
    """
    global _process
    finalizer = weakref.finalize(owner, end, *arguments)
    finalizer.atexit = False
    if _process != os.getpid():
        _process = os.getpid()
        _left.clear()
        atexit.register(_end_all, _process)  # behind weakref's own handler, which lets no finalizer act any more
    _left[:] = [*(each for each in _left if each.alive), finalizer]
    return finalizer


def fail_at_exit(abort: Callable[[], object]) -> None:
    """Make the exit of this process call `abort` and then end with status 1, past every clean-up that could hang.

    Registered last, it runs before the clean-ups of MPI and Horovod, which wait for ranks that are gone, and after
    Python has printed the traceback of an uncaught exception. Exit handlers registered earlier do not run.
    """
    _aborts.append(abort)
    if not _ending:  # else _end_all() looks
        atexit.register(_leave, os.getpid())


def forgive() -> None:
    """What fail_at_exit() was called for has ended: this process leaves as any other, unless it is called again."""
    _aborts.clear()
    atexit.unregister(_leave)


def _end_all(process: int) -> None:
    global _ending
    if process != os.getpid():
        return
    _ending = True
    for finalizer in reversed(tuple(_left)):
        try:
            finalizer()
        except Exception:  # as of any exit handler: it is told, and the next one is called
            sys.excepthook(*sys.exc_info())
    if _aborts:
        _leave(process)


def _leave(process: int) -> None:
    if process != os.getpid():
        return
    # What follows may get stuck and hold the interpreter's lock; the kernel's alarm needs no lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_ABORT_LIMIT_S)
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, a closed pipe: the process ends all the same
                stream.flush()
        _aborts[-1]()
    finally:
        os._exit(1)
