"""The files of a journal, and which step they lead to.

tables.json                    what it is the journal of
lock.RANK-of-RANKS             held by the process that writes
run-NUMBER/                    one training after the other; but for a moment there is one
    complete                   its first base is there
    dense.RANK-of-RANKS.STEP   the dense part behind that step
    from-STEP/                 a base, which began then, and the journal behind it
        base.RANK-of-RANKS     this owner's rows
        critical.RANK-of-RANKS, later.RANK-of-RANKS    what this rank has updated, by lane
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvd_compress.embedding.frames import Frame, cut, read
from hvd_compress.errors import ConfigError, JournalError
from hvd_compress.warned import warn_caller

LANES = ("critical", "later")
_COMPLETE = "complete"
_LOCK_S = 10.0  # for which a process that was killed may still end
_LOOK_S = 0.1


class Generation(NamedTuple):
    """A base, and the journal behind it. `step`: how many steps were trained when it began."""

    folder: Path
    step: int


class JournalFolder:
    """One rank's look at the files.

    Attributes:
        run: the folder of the training that is written or was restored.
    """

    def __init__(self, folder: Path, rank: int, ranks: int, trainers: Sequence[int]) -> None:
        self.folder, self.rank, self.ranks, self.trainers = folder, rank, ranks, trainers
        self.run = folder / "run-0"
        self._lock_path = folder / f"lock.{rank}-of-{ranks}"
        self._unlock: Callable[[], object] = lambda: None

    def claim(self, identity: dict[str, Any], writer: str) -> bool:
        """Lock it, and see whose it is. Return whether this `writer`, a name, is the one that had it last.

        Raises:
            ConfigError: it has the journal of other tables, or of another number of ranks.
            JournalError: another process writes it; or it cannot be made, or read.
        """
        path = self.folder / "tables.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            if not path.exists():
                draft = self.folder / f"tables.{self.rank}.partial"
                draft.write_text(json.dumps(identity))
                draft.replace(path)
            found, last = json.loads(path.read_text()), self._lock_path.read_text()
            self._lock_path.write_text(writer)
        except JournalError:
            raise
        except (OSError, ValueError) as error:
            raise JournalError(f"the journal {self.folder} cannot be made or read: {error}") from error
        self.choose_run(max(self.runs(), default=0))
        if found != identity:
            raise ConfigError(f"{self.folder} has the journal of {found}, and this is {identity}: name another folder")
        return last == writer

    def release(self) -> None:
        self._unlock()

    def _take_lock(self) -> None:
        """Two jobs must not write the same files. The lock ends with the process that has it."""
        lock, end = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o666), time.monotonic() + _LOCK_S
        self._unlock = weakref.finalize(self, _release, lock)
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    return warn_caller(
                        f"{self._lock_path} cannot be locked ({error}): see that one job alone writes it"
                    )
                if time.monotonic() > end:
                    raise JournalError(
                        f"rank {self.rank}: the journal {self.folder} is written by another process, or by a Lookahead "
                        f"that was not closed, and only one job may write it ({self._lock_path})"
                    ) from None
                time.sleep(_LOOK_S)

    def dense(self, step: int) -> Path:
        return self.run / f"dense.{self.rank}-of-{self.ranks}.{step}"

    def path(self, generation: Generation, what: str, rank: int | None = None) -> Path:
        """`what`: "base", or one of LANES."""
        return generation.folder / f"{what}.{self.rank if rank is None else rank}-of-{self.ranks}"

    def generation(self, step: int) -> Generation:
        return Generation(self.run / f"from-{step}", step)

    def generations(self) -> list[Generation]:
        """Return all of this run, the oldest first."""
        found = [re.fullmatch(r"from-(\d+)", path.name) for path in self.run.iterdir()] if self.run.exists() else []
        return sorted((self.generation(int(each[1])) for each in found if each), key=lambda each: each.step)

    def runs(self) -> list[int]:
        """Return the numbers of trainings whose first base is complete."""
        found = [re.fullmatch(r"run-(\d+)", path.name) for path in self.folder.iterdir()]
        return [int(each[1]) for each in found if each and (self.folder / each[0] / _COMPLETE).exists()]

    def choose_run(self, number: int) -> None:
        self.run = self.folder / f"run-{number}"

    def complete_run(self) -> None:
        (self.run / _COMPLETE).touch()

    def is_complete(self) -> bool:
        """Return whether complete_run() of any rank can be seen here; a network's file system may take a while."""
        end = time.monotonic() + _LOCK_S
        while not (self.run / _COMPLETE).exists():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_S)
        return True

    def remove_run(self, number: int) -> None:
        """Remove a run: first what makes it one."""
        folder = self.folder / f"run-{number}"
        (folder / _COMPLETE).unlink()
        _remove(folder)

    def remove_incomplete(self) -> None:
        """Remove what processes that were killed have left, before their run was complete or behind its end."""
        for folder in self.folder.glob("run-*"):
            if not (folder / _COMPLETE).exists():
                _remove(folder)

    def remove_before(self, step: int) -> None:
        """Remove what came before a base."""
        for generation in self.generations():
            if generation.step < step:
                _remove(generation.folder)

    def dense_steps(self, rank: int) -> set[int]:
        """Return how many steps were trained when a rank wrote its dense part, for each that is whole: a loss of power
        leaves others."""
        found = (
            (path, re.fullmatch(rf"dense\.{rank}-of-{self.ranks}\.(\d+)", path.name)) for path in self.run.iterdir()
        )
        return {int(name[1]) for path, name in found if name and zipfile.is_zipfile(path)}

    def last_whole(self) -> tuple[int, Generation | None]:
        """Return the last step that all ranks have, and the last base that leads to it; None where there is none yet.

        Raises:
            JournalError: there is a training, and no such step.
        """
        if not self.runs():
            return 0, None
        generations, ranks = self.generations(), range(self.ranks)
        common = set.intersection(*(self.dense_steps(rank) for rank in self.trainers))
        for at in reversed(range(len(generations))):
            valid = max(_valid(self.path(generations[at], "base", rank)) for rank in ranks)
            least = min(self._last_end(rank, lane, generations[at:]) for rank in ranks for lane in LANES)
            whole = max((step for step in common if step <= least), default=-1)
            if valid <= whole:
                return whole, generations[at]
        raise JournalError(f"{self.run} has no step that all ranks have: remove {self.folder}, and load a checkpoint")

    def frames(self, start: Generation, whole: int) -> Iterator[Frame]:
        """Return what this rank must load for a step, in this order: its base, and what any rank has updated since."""
        yield from read(self.path(start, "base")).frames
        generations = [each for each in self.generations() if each.step >= start.step]
        paths = [self.path(each, lane, rank) for each in generations for lane in LANES for rank in range(self.ranks)]
        frames = [frame for path in paths if path.exists() for frame in read(path, checks=True).frames]
        yield from sorted((frame for frame in frames if frame.step <= whole), key=lambda frame: frame.step)

    def cut_behind(self, whole: int) -> None:
        """Remove what this rank has written of steps that are undone."""
        for generation in self.generations():
            if generation.step > whole:
                for path in generation.folder.glob(f"*.{self.rank}-of-{self.ranks}*"):
                    path.unlink()
            for path in (self.path(generation, lane) for lane in LANES):
                if path.exists():
                    cut(path, whole)
            own = self.path(generation, "base")
            if own.exists() and _valid(own) > whole:
                own.unlink()  # it has rows of these steps
        for path in self.run.glob(f"dense.{self.rank}-of-{self.ranks}.*"):
            if path.suffix[1:].isdigit() and int(path.suffix[1:]) > whole:
                path.unlink()

    def _last_end(self, rank: int, lane: str, generations: Sequence[Generation]) -> int:
        """Return the last step that a lane has without a gap, from the first of these generations on."""
        found = generations[0].step
        for generation in generations:
            path = self.path(generation, lane, rank)
            if found < generation.step:
                break
            if path.exists():
                found = max([found, *read(path, checks=True).ends])
        return found


def _release(lock: int) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)  # processes that were forked meanwhile have it open, too
    os.close(lock)


def _valid(base: Path) -> float:
    """Return how many steps must be trained for the journal to complete a base; infinity where it is none."""
    return max(read(base).ends, default=math.inf) if base.exists() else math.inf


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise JournalError(f"cannot remove {folder}, which a journal needs no more: {error}") from error
