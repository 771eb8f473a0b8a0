"""What the system lets a process have: where an engine or a thread meets such a limit, the error says that."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from hvd_compress.errors import CommunicationError

SPARE_FILES = 16
"""Left to the program, and to connections that are closed once ranks have met."""
_FILES = ("Too many open files", "Errno 24")
_THREADS = ("can't start new thread", "Resource temporarily unavailable")


def files_obstacle(needed: int, what: str) -> str:
    """Say that this process may not open `needed` more files, for `what`, or return "".

    gloo would end the process in one of its own threads.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno != errno.EMFILE:  # another system than Linux
            return ""
        used = limit
    if limit == resource.RLIM_INFINITY or used + needed + SPARE_FILES <= limit:
        return ""
    return f"{used} files are open of the {limit} that this process may have, and {what} needs {needed} more. {_RAISE}"


@contextmanager
def naming_limits(what: str) -> Iterator[None]:
    """Of an error within the block that comes from a limit of the system, say which, as a CommunicationError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        words = limit_met(error)
        if not words:
            raise
        raise CommunicationError(f"{what} cannot be made: {words} ({error})") from error


def limit_met(error: BaseException) -> str:
    """Say which limit of the system an error comes from, and what to do; "" for other errors."""
    if any(sign in str(error) for sign in _FILES):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"the {limit} files that this process may have are open. {_RAISE}"
    if any(sign in str(error) for sign in _THREADS):
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        most = "as many as the container may have" if limit == resource.RLIM_INFINITY else f"{limit} at most"
        return (
            f"the system starts no more threads for this user ({most}). Raise `ulimit -u`, or what the container may "
            "have (pids), on all hosts, or keep fewer models, optimizers and loaders at a time"
        )
    return ""


_RAISE = (
    "Raise the limit on all hosts before the launch (ulimit -n 65536), or keep fewer models, optimizers and loaders at "
    "a time"
)
