"""Jobs whose ranks are killed, stopped and started while they train, and what they have said so far."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

from tests.jobs.launch import CHECKOUT

LIMIT_S = 600.0
"""Only what hangs takes so long."""


class Job:
    """A job that a launcher runs."""

    def __init__(self, words: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=CHECKOUT,
            env={
                **os.environ,
                "HVD_COMPRESS_RUNTIME": "torch",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                "HVD_COMPRESS_ADAPT": "0",
                "HVD_COMPRESS_TIMEOUT_S": str(timeout_s),
                **(variables or {}),
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += iter(self.process.stdout.readline, "")

    def said(self, pattern: str) -> list[re.Match[str]]:
        return [found for line in list(self.lines) if (found := re.search(pattern, line))]

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.02)

    def until_steps(self, count: int) -> None:
        """Wait until rank 0 has shown this number of steps since ranks met last."""
        self.until(lambda: len(self.since_meeting(r"^step \d+")) >= count)

    def since_meeting(self, pattern: str) -> list[re.Match[str]]:
        lines = list(self.lines)
        last = max((place for place, line in enumerate(lines) if " enters step " in line), default=0)
        return [found for line in lines[last:] if (found := re.search(pattern, line))]

    def members(self) -> dict[int, int]:
        """Return by rank the processes that have met last."""
        met = self.said(r"^(\d+) enters step \d+ as rank (\d+) of (\d+)")
        size = int(met[-1][3])
        return {int(each[2]): int(each[1]) for each in met[-size:]}

    def until_met(self, size: int, times: int) -> None:
        """Wait until a number of ranks has met, the given number of times."""
        self.until(lambda: len(self.said(rf" enters step \d+ as rank \d+ of {size}$")) >= size * times)

    def end(self) -> int:
        status = self.process.wait(LIMIT_S)
        self._reader.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()


def runs(process: int) -> bool:
    """Return whether a process has not ended; one that has may stay in the system's list, where nobody waits for it."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(process, signal.SIGKILL)


@contextmanager
def launched(*words: str, timeout_s: float = 60.0) -> Iterator[Job]:
    """Run a job, and end it where a test has failed."""
    made = Job(words, timeout_s)
    try:
        yield made
    finally:
        made.close()


def require_exact(ended: Job, ranks: int | None = None, killed: Collection[int] = ()) -> None:
    """Require that a job ends well, with nothing lost, and as many ranks. Arguments are those of require_alike()."""
    require_alike(ended, ranks, killed)
    assert {each[1] for each in ended.said(r"\d+ ends: exact (\w+)")} == {"True"}, ended.lines


def require_alike(ended: Job, ranks: int | None = None, killed: Collection[int] = ()) -> None:
    """Require that a job ends well, with one model on all ranks, and as many of those.

    Args:
        ranks: by default all that have met last, but for those that may have been `killed` since.
    """
    assert ended.end() == 0, ended.lines
    found = ended.said(r"(\d+) ends: .*, alike (\w+)")
    assert {each[2] for each in found} == {"True"}, ended.lines
    if ranks is None:
        assert {int(each[1]) for each in found} >= {*ended.members().values()} - {*killed}, ended.lines
    else:
        assert len(found) == ranks, ended.lines
