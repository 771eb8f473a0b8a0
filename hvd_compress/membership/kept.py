"""What a process leaves in its host's memory for those that torchrun starts after it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hvd_compress.errors import ConfigError

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Is in the environment of all that an agent of torchrun starts, and not in its own."""
_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)of(\d+)-(whole|own)(-all)?\.pt")


@dataclass(frozen=True, order=True)
class Moment:
    """When ranks have kept something, all of them the same.

    Attributes:
        attempt: how often torchrun had started them anew.
        number: of the copy, in this attempt.
        world_size: how many they were.
    """

    attempt: int
    number: int
    world_size: int


@dataclass(frozen=True, order=True)
class Copy:
    """What one rank has kept.

    Attributes:
        is_whole: whether it holds what is the same on all ranks, too.
        by_all: whether it is known that all ranks have kept theirs.
    """

    moment: Moment
    rank: int
    is_whole: bool
    by_all: bool = False

    @property
    def name(self) -> str:
        """Return the name of its file."""
        at, what = self.moment, ("own", "whole")[self.is_whole] + "-all" * self.by_all
        return f"{at.attempt}-{at.number}-{self.rank}of{at.world_size}-{what}.pt"

    @classmethod
    def named(cls, name: str) -> Copy | None:
        """Return the one whose file has this name; None for other files."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        attempt, number, rank, world_size = map(int, found.groups()[:4])
        return cls(Moment(attempt, number, world_size), rank, found[5] == "whole", found[6] is not None)


def best(copies: Collection[Copy]) -> tuple[Moment | None, list[int]]:
    """Return the newest moment that all ranks have kept, and the ranks whose copies went with their hosts.

    Args:
        copies: of all hosts. The moment is None where ranks have kept nothing yet.
    """
    there = defaultdict[Moment, set[int]](set)
    for each in copies:
        there[each.moment].add(each.rank)
    by_all = {each.moment for each in copies if each.by_all or len(there[each.moment]) == each.moment.world_size}
    usable = {each.moment for each in copies if each.is_whole} & by_all
    if not usable:
        return None, []
    chosen = max(usable)
    return chosen, sorted(set(range(chosen.world_size)) - there[chosen])


class Kept:
    """The copies that one agent's processes have kept. They go with the agent, or when the next job starts."""

    def __init__(self, training: int = 0, roots: Sequence[Path] = (_MEMORY, Path(tempfile.gettempdir()))) -> None:
        """Remove what jobs have left whose agent is gone.

        Args:
            training: which of a program's, where it has several.
            roots: where there may be memory, the best place first.
        """
        known = dict.fromkeys(root.resolve() for root in roots if os.access(root, os.W_OK))
        self._places = [place for root in known if _is_ours(place := root / f"hvd_compress-{os.getuid()}")]
        self._own = Path(agent()) / str(training)
        for left in (each for place in self._places for each in place.iterdir()):
            if _is_gone(left.name):
                shutil.rmtree(left, ignore_errors=True)  # another process may remove it as well
        self._place: Path | None = None

    def keep(self, copy: Copy, state: Any, nbytes: int) -> None:
        """Keep a state beside the last one.

        Args:
            nbytes: about how many it takes.

        Raises ConfigError where there is no memory for it.
        """
        try:
            directory = self._directory(2 * nbytes)
            part = directory / f"{copy.rank}.part"
            try:
                torch.save(state, part)
                part.replace(directory / copy.name)
            finally:
                part.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # the latter is what torch makes of a full file system
            place, self._place = self._place, None  # another one may have room the next time
            raise ConfigError(f"commit() cannot keep {nbytes >> 20} MiB in {place}: {error}") from error

    def drop_before(self, last: Copy) -> None:
        """All ranks have kept their copies of this moment: remove this rank's earlier ones, and those of others."""
        for copy, path in self._all():
            if copy == last:
                path.rename(path.with_name(replace(copy, by_all=True).name))
            elif copy.moment < last.moment and (copy.rank == last.rank or copy.moment.attempt < last.moment.attempt):
                path.unlink(missing_ok=True)

    def found(self) -> list[Copy]:
        """Return all copies on this host, in their order."""
        return sorted(copy for copy, _ in self._all())

    def load(self, copy: Copy) -> Any:
        """Return the state that was kept."""
        (path,) = [path for each, path in self._all() if each == copy]
        # Of the same user, in a directory of his own. Whoever takes it over moves tensors where they belong.
        return torch.load(path, map_location="cpu", weights_only=False)

    def drop(self, copy: Copy) -> None:
        """Remove a copy that not all ranks could keep."""
        for each, path in self._all():
            if each == copy:
                path.unlink(missing_ok=True)

    def remove_with_agent(self) -> None:
        """Have all trainings' copies removed as soon as the agent has ended, however that comes."""
        number = self._own.parent.name.split("-")[-2]
        directories = [place / self._own.parent for place in self._places]
        if any(each.exists() for each in directories):
            return  # a process before this one has seen to it
        for each in directories:
            each.mkdir(mode=0o700)
        waits = '(tail --pid="$0" -f /dev/null; rm -rf "$@") < /dev/null > /dev/null 2>&1 &'
        subprocess.run(["sh", "-c", waits, number, *directories], check=True, start_new_session=True)

    def _directory(self, nbytes: int) -> Path:
        """Return where there is room for these bytes."""
        if self._place is None:
            room = {place: shutil.disk_usage(place.parent).free + self._held(place) for place in self._places}
            self._place = next((place for place in self._places if room[place] > nbytes), None)
            if self._place is None:
                words = ", ".join(f"{place.parent} has {free >> 20} MiB" for place, free in room.items())
                raise ConfigError(f"commit() keeps copies of {nbytes >> 20} MiB, and {words}: give one of them more")
        directory = self._place / self._own
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    def _held(self, place: Path) -> int:
        """Return how many bytes there are of this training, which new copies replace."""
        return sum(path.stat().st_size for path in (place / self._own).glob("*.pt"))

    def _all(self) -> list[tuple[Copy, Path]]:
        paths = [path for place in self._places for path in (place / self._own).glob("*.pt")]
        return [(copy, path) for path in paths if (copy := Copy.named(path.name)) is not None]


def agent() -> str:
    """Return what names the agent that has started this process, also if by a script.

    By its number and start, and those by which numbers mean anything: the boot of its host and its namespace.
    """
    given = f"{VARIABLE}={os.environ.get(VARIABLE, '')}".encode()
    process = os.getppid()
    while given in _environment(process):
        process = int(_status(process)[1])
    return f"{_here()}-{_identity(process)}"


def _environment(process: int) -> set[bytes]:
    """Return what a process was started with; nothing where it may not be read, or is of another namespace."""
    try:
        return set(Path(f"/proc/{process}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _status(process: int) -> list[str]:
    """Return its state, its parent, and so on, as proc(5) numbers them from the third."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _identity(process: int) -> str:
    try:
        return f"{process}-{_status(process)[19]}"
    except OSError:
        return f"{process}-0"


def _here() -> str:
    """Return what tells this host since its start, and this namespace of processes, from others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _is_gone(name: str) -> bool:
    """Return whether this is of an agent of this host and namespace, which lives no more."""
    here = f"{_here()}-"
    identity = name.removeprefix(here)
    number = identity.partition("-")[0]
    return name.startswith(here) and number.isdecimal() and _identity(int(number)) != identity


def _is_ours(place: Path) -> bool:
    """Return whether a directory is this user's alone. It is made where there is none."""
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink():
        return False
    about = place.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o077
