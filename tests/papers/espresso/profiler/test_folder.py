"""A folder has one owner at a time, whatever that comes to."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.profiler import folder
from hvd_compress.papers.espresso.profiler.folder import COMMAND, RUN, Claim, is_of, unwritable

pytestmark = pytest.mark.level2

HOLDS = """
import sys, time
from pathlib import Path
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
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


def test_a_command_shares_its_folder_with_the_job_that_it_has_started(tmp_path: Path) -> None:
    """And with no other one, which would take its files for its own."""
    with Claim(tmp_path, COMMAND) as command:
        for other in ("", Claim(tmp_path / "other", COMMAND).run, command.run[:-1], "-"):
            with pytest.raises(ConfigError, match=rf"by process {os.getpid()} on "):
                Claim(tmp_path, RUN, other)
        with Claim(tmp_path, RUN, command.run) as job:
            assert is_of(job.run, command.run)
            with pytest.raises(ConfigError):
                Claim(tmp_path, RUN, command.run)
        with Claim(tmp_path, RUN, command.run) as again:
            assert again.run != job.run
    with Claim(tmp_path, RUN, command.run) as orphan:  # its command has ended, and was killed perhaps
        assert not is_of(orphan.run, command.run)
        with pytest.raises(ConfigError):
            Claim(tmp_path, COMMAND)
    Claim(tmp_path, COMMAND).release()


def test_a_job_whose_command_was_killed_goes_on(tmp_path: Path) -> None:
    (tmp_path / COMMAND).write_text("process 1 on host\nthecommand\n")
    with Claim(tmp_path, RUN, "thecommand") as job:
        assert is_of(job.run, "thecommand")
    (tmp_path / COMMAND).write_bytes(b"\xff\xfe")
    Claim(tmp_path, RUN, "thecommand").release()


def test_a_folder_that_was_removed_is_not_held(tmp_path: Path) -> None:
    """Another run has perhaps made it anew, whose files are in it now."""
    place = tmp_path / "profile"
    first = Claim(place, RUN)
    assert first.holds
    shutil.rmtree(place)
    assert not first.holds
    with Claim(place, RUN) as second:
        assert second.holds
        assert not first.holds
        first.release()
        assert second.holds
    assert not second.holds


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
    shutil.rmtree(place)
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


@pytest.mark.parametrize("name", [RUN, COMMAND])
def test_a_full_file_system_is_told_and_nothing_stays_locked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of a command could not know that the folder is its own."""

    def pwrite(fd: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        with pytest.raises(ConfigError, match=r"cannot write to the folder .*: No space left on device"):
            Claim(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
    Claim(tmp_path, name).release()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert unwritable(tmp_path) == ""
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "file") == "Not a directory"
    assert unwritable(tmp_path / "none") == "No such file or directory"
    with pytest.raises(ConfigError, match=r"cannot write to the folder .*file"):
        Claim(tmp_path / "file", RUN)


def test_a_folder_that_is_gone_can_be_released(tmp_path: Path) -> None:
    with Claim(tmp_path / "folder", RUN):
        shutil.rmtree(tmp_path / "folder")
        (tmp_path / "folder").touch()
    assert (tmp_path / "folder").is_file()
