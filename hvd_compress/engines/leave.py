"""Leaving a process whose collectives will never finish."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable

_ABORT_LIMIT_S = 10


def fail_at_exit(abort: Callable[[], object]) -> None:
    """Make the exit of this process call `abort` and then end with status 1, past every clean-up that could hang.

    Registered last, it runs before the clean-ups of MPI and Horovod, which wait for ranks that are gone, and after
    Python has printed the traceback of an uncaught exception. Exit handlers registered earlier do not run.
    """

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # `abort` may itself get stuck and hold the interpreter's lock; the kernel's alarm needs no lock.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_ABORT_LIMIT_S)
        try:
            abort()
        finally:
            os._exit(1)

    atexit.register(leave)
