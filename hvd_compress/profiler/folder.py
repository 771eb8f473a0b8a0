"""The folder of a profile, which one run has at a time: files of two would be no profile of either."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from hvd_compress.errors import ConfigError

RUN, COMMAND = "run.lock", "command.lock"
"""What is locked: by the process that writes the files, rank 0 of a job, and by `hvd-compress profile` around it."""
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What flock() says on a file system without locks."""

log = logging.getLogger("hvd_compress")


class Claim:
    """Nobody else claims the same before this is released, or its process has ended, however that came.

    It is a lock of the kernel on a file in the folder, which says whose it is.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """`name`: RUN or COMMAND.

        Raises ConfigError where somebody else has it, or the folder cannot be written.
        """
        self._path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = _locked(self._path)
        except BlockingIOError:
            raise ConfigError(
                f"another profile is recorded into the folder {folder}, by {_holder(self._path)}: name another folder, "
                "or wait until that one ends"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot write to the folder {folder}: {error.strerror}") from None
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        words = f"process {os.getpid()} on {socket.gethostname()} since {since} ({' '.join(sys.argv)[:200]})"
        with suppress(OSError):  # it is locked all the same
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, words.encode(errors="replace"), 0)

    def release(self) -> None:
        """Let others have it. A second call changes nothing."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            if _lies_at(self._path, fd):  # and not a file of somebody who has made the folder anew
                self._path.unlink()
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a child process may have the file open, too
        with suppress(OSError):
            os.close(fd)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def unwritable(folder: Path) -> str:
    """Return why nothing can be written into a folder, or nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _locked(path: Path) -> int:
    """Return a file that this process has locked. Raises BlockingIOError where another one has."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(path, fd)
            if _lies_at(path, fd):  # else it was released, and removed, between two lines of this
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(path: Path, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("hvd_compress: no locks in %s: profiles that are recorded there at once would mix", path.parent)


def _lies_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace") or "another process"
    return "another process"
