"""The folder of a profile, which one run has at a time: files of two would be no profile of either.

A run has an id, which is in each of its files. `hvd-compress profile` passes its own on to the job that it starts, and
knows the files of that job by it; another job is refused the folder meanwhile.
"""

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
from uuid import uuid4

from hvd_compress.errors import ConfigError

RUN, COMMAND = "run.lock", "command.lock"
"""What is locked: by the process that writes the files, rank 0 of a job, and by `hvd-compress profile` around it."""
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What flock() says on a file system without locks."""

_BETWEEN = "-"
"""In the id of a run, between a command's and its own."""

log = logging.getLogger("hvd_compress")


class Claim:
    """Nobody else claims the same before this is released, or its process has ended, however that came.

    It is a lock of the kernel on a file in the folder, which says whose it is.

    Attributes:
        folder: that is claimed.
        run: the id of this run; after a command's own, where that has started it.
    """

    def __init__(self, folder: Path, name: str, command: str = "") -> None:
        """`name`: RUN or COMMAND; RUN without the id of the `command` that has the folder claims that, too.

        Raises ConfigError where somebody else has it, or the folder cannot be written.
        """
        self.folder, self._path, self._outer = folder, folder / name, None
        of_command = name == RUN and command != "" and _run_of(folder / COMMAND) == command
        own = uuid4().hex[:12]
        self.run = f"{command}{_BETWEEN}{own}" if of_command else own
        if name == RUN and not of_command:
            self._outer = Claim(folder, COMMAND)
        self._fd = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = _locked(self._path)
            self._sign()
        except OSError as error:
            words = f"cannot write to the folder {folder}: {error.strerror}"
            if isinstance(error, BlockingIOError):
                words = (
                    f"another profile is recorded into the folder {folder}, by {_holder(self._path)}: name another "
                    "folder, or wait until that one ends"
                )
            self.release()
            raise ConfigError(words) from None

    def _sign(self) -> None:
        """Say whose it is: to people, and the id to the job of this command."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        words = f"process {os.getpid()} on {socket.gethostname()} since {since} ({' '.join(sys.argv)[:200]})"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{' '.join(words.split())}\n{self.run}\n".encode(errors="replace"), 0)

    @property
    def holds(self) -> bool:
        """Whether the folder is still the one that was claimed: not after it was removed, and perhaps made anew."""
        return self._fd >= 0 and _lies_at(self._path, self._fd)

    def release(self) -> None:
        """Let others have it. A second call changes nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _unlock(self._path, fd)
        if self._outer is not None:
            self._outer.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def is_of(run: str, command: str) -> bool:
    """Return whether a run was started by the command with this id."""
    return run.startswith(command + _BETWEEN)


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


def _unlock(path: Path, fd: int) -> None:
    with suppress(OSError):
        if _lies_at(path, fd):  # and not a file of somebody who has made the folder anew
            path.unlink()
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child process may have the file open, too
    with suppress(OSError):
        os.close(fd)


def _lies_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _holder(path: Path) -> str:
    return _lines(path)[0] or "another process"


def _run_of(path: Path) -> str:
    """Return the id of the run that has locked a file, or had; nothing where it says none."""
    return _lines(path)[1]


def _lines(path: Path) -> tuple[str, str]:
    """Return what the owner of a lock has written: who it is, and the id of its run."""
    try:
        words, run, *_ = [*path.read_text(errors="replace").splitlines(), "", ""]
    except OSError:
        return "", ""
    return words, run
