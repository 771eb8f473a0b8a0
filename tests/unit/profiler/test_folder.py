"""A folder has one owner at a time, whatever that comes to."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.profiler import folder
from hvd_compress.profiler.folder import COMMAND, RUN, Claim, unwritable

HOLDS = """
import sys, time
from pathlib import Path
from hvd_compress.profiler.folder import RUN, Claim
claim = Claim(Path(sys.argv[1]), RUN)
print("mine", flush=True)
time.sleep(3600)
"""


def test_the_second_is_told_whose_it_is(tmp_path: Path) -> None:
    with Claim(tmp_path, RUN):
        with pytest.raises(
            ConfigError, match=rf"by process {os.getpid()} on .* since .*: name another folder, or wait"
        ):
            Claim(tmp_path, RUN)
        Claim(tmp_path, COMMAND).release()
        with Claim(tmp_path / "other", RUN):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["other"], "nothing is left behind"
    Claim(tmp_path, RUN).release()


def test_a_second_release_takes_it_from_nobody(tmp_path: Path) -> None:
    first = Claim(tmp_path, RUN)
    first.release()
    with Claim(tmp_path, RUN):
        first.release()
        with pytest.raises(ConfigError):
            Claim(tmp_path, RUN)


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    with pytest.raises(ConfigError, match=f"by process {process.pid} on "):
        Claim(tmp_path, RUN)
    process.kill()
    process.communicate()
    assert (tmp_path / RUN).exists()
    Claim(tmp_path, RUN).release()


def test_a_child_process_does_not_hold_what_was_released(tmp_path: Path) -> None:
    """As a worker of a DataLoader does, which outlives the profile."""
    claim = Claim(tmp_path, RUN)
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    try:
        claim.release()
        Claim(tmp_path, RUN).release()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_file_that_is_removed_before_it_is_locked_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the one before is released between two lines of the next one."""
    first, lock = Claim(tmp_path, RUN), folder._lock

    def late(path: Path, fd: int) -> None:
        first.release()
        lock(path, fd)

    monkeypatch.setattr(folder, "_lock", late)
    with Claim(tmp_path, RUN), pytest.raises(ConfigError):
        Claim(tmp_path, RUN)


def test_a_folder_that_is_nowhere_any_more_is_left(tmp_path: Path) -> None:
    place = tmp_path / "profile"
    claim = Claim(place, RUN)
    (place / RUN).unlink()
    place.rmdir()
    place.symlink_to(place)
    claim.release()
    place.unlink()
    Claim(place, RUN).release()


def test_never_two_at_once(tmp_path: Path) -> None:
    """Though the file comes and goes all the time."""
    holders, most, taken = [0], [0], [0]

    def body() -> None:
        for _ in range(200):
            try:
                claim = Claim(tmp_path, RUN)
            except ConfigError:
                continue
            holders[0] += 1
            most[0], taken[0] = max(most[0], holders[0]), taken[0] + 1
            time.sleep(1e-5)  # let another thread come
            holders[0] -= 1
            claim.release()

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], holders[0]) == (1, 0)
    assert taken[0] > 0


def test_a_file_system_without_locks_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING, "hvd_compress"), Claim(tmp_path, RUN):
        pass
    assert re.search("no locks in .*: profiles that are recorded there at once would mix", caplog.text)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert unwritable(tmp_path) == ""
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "file") == "Not a directory"
    assert unwritable(tmp_path / "none") == "No such file or directory"
    with pytest.raises(ConfigError, match=r"cannot write to the folder .*file"):
        Claim(tmp_path / "file", RUN)


def test_a_folder_that_is_gone_can_be_released(tmp_path: Path) -> None:
    with Claim(tmp_path / "folder", RUN):
        (tmp_path / "folder" / RUN).unlink()
        (tmp_path / "folder").rmdir()
        (tmp_path / "folder").touch()
    assert (tmp_path / "folder").is_file()
