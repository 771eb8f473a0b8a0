"""What each step has changed, on disk: a job that was killed goes on behind the last step that all ranks have.

Each rank appends the records of rows that it has updated to two files, one for each lane of exchanges, and writes the
state of the dense part once a step. From time to time owners write all their rows besides, a base, while training goes
on: rows that change meanwhile are in the journal, too. So a base and the journal behind it give the rows of any step
from the one on in which the base was finished (fuzzy checkpoints; Mohan et al. 1992, ARIES).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hvd_compress.embedding.frames import Frame, FrameWriter, cut, read
from hvd_compress.embedding.servers import Shard
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import ConfigError, JournalError, UsageError
from hvd_compress.session.worker import Worker, ran

LANES = ("critical", "later")
_KEPT = 8  # states of the dense part: ranks are two steps apart, and a lane is two behind
_COMPLETE = "complete"
_END_S = 10.0
_CHUNK = 1 << 16  # rows of a base that are written at a time
Gather = Callable[[Any], Sequence[Any]]
"""Returns what all ranks have passed."""


class _Generation(NamedTuple):
    """A base, and the journal behind it. `step`: how many steps were trained when it began."""

    folder: Path
    step: int


class _Base(NamedTuple):
    """`valid` holds when it is written: how many steps must be trained for the journal to complete it."""

    step: int
    valid: Future[int]


class Journal:
    """Writes and reads the journal of a Lookahead's training.

    It outlives processes that are killed. For what outlives the power of a machine it relies on the file system.

    Attributes:
        step: how many steps were trained when the dense part was written last; -1 before.
    """

    def __init__(self, folder: str | Path, dense: Mapping[str, Any] | None = None, *, every: int = 1000) -> None:
        """
        Args:
            folder: one that all ranks share, for this job alone.
            dense: what else a step changes, such as the model and its optimizer, by names: objects with state_dict()
                and load_state_dict(). The state of torch's random numbers on the CPU is written besides.
            every: steps between two bases.

        Raises:
            ConfigError: an argument has no meaning.
        """
        self.folder, self._dense, self.every = Path(folder), dict(dense or {}), every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"every = {every!r} of a Journal is not a whole number of steps, 1 or more")
        for name, each in self._dense.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise ConfigError(f"{name!r} of a Journal has no state_dict() and load_state_dict(): {each!r}")
        self.step = -1
        self._rank, self._ranks, self._restored, self._run = 0, 1, False, self.folder / "run-0"
        self._trainers: Sequence[int] = (0,)
        self._writers: dict[str, FrameWriter] = {}
        self._bases: list[_Base] = []
        self._worker: Worker | None = None

    def open(self, rank: int, ranks: int, trainers: Sequence[int], tables: Sequence[str]) -> None:
        """Take a place among ranks. Local.

        Raises:
            ConfigError: the folder has the journal of other tables, or of another number of ranks.
            JournalError: it cannot be made, or read.
        """
        self._rank, self._ranks, self._trainers = rank, ranks, trainers
        path, identity = self.folder / "tables.json", {"ranks": ranks, "tables": list(tables)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                draft = self.folder / f"tables.{rank}.partial"
                draft.write_text(json.dumps(identity))
                draft.replace(path)
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise JournalError(f"the journal {self.folder} cannot be made or read: {error}") from error
        if found != identity:
            raise ConfigError(f"{self.folder} has the journal of {found}, and this is {identity}: name another folder")

    def forget(self) -> None:
        """Rows were loaded: the next training begins a journal anew."""
        self.step = -1

    def keep(self, step: int) -> None:
        """Write the dense part as `step` steps have left it; servers have none."""
        self.step = step
        if self._rank not in self._trainers:
            return
        state = {name: each.state_dict() for name, each in self._dense.items()}
        path = self._dense_path(step)
        draft = path.with_name(f"{path.name}.partial")
        try:
            torch.save({"dense": state, "random": torch.get_rng_state()}, draft)
            draft.replace(path)
            self._dense_path(step - _KEPT).unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch.save raises the latter where a disk is full
            raise JournalError(f"cannot write the journal {path}: {error}") from error

    def write(self, lane: str, step: int, part: int, ids: torch.Tensor, records: torch.Tensor) -> None:
        """Append records (n, width) of rows (n,) that a step has changed; the `step`th one, from 1 on."""
        self._writers[lane].write(step, part, ids, records)

    def end(self, lane: str, step: int) -> None:
        """All that a step has changed in a lane was appended."""
        self._writers[lane].end(step)

    def start(self, step: int, steps: Callable[[], int], shards: Sequence[Shard], gather: Gather) -> None:
        """Be ready for a training that begins behind `step` steps, when owners have all rows. Collective.

        What the journal has stays where it leads to this step; else it is of another training, and begins anew.

        Raises:
            UsageError: it has a training, and restore() was not called.
            JournalError: it cannot be written.
        """
        told = gather([step == self.step, bool(self._writers)])
        is_same = all(same for same, _ in told)
        if is_same and all(writes for _, writes in told):
            return
        runs = self._runs()
        if not self._restored and runs:
            raise UsageError(
                f"{self.folder} has the journal of a training: call restore() before the first loop, or remove it"
            )
        gather("looked")
        self._restored = True
        if is_same:
            self._begin(step, steps, shards, gather)
            return
        self._run = self.folder / f"run-{max(runs, default=-1) + 1}"
        if self._rank == 0:
            shutil.rmtree(self._run, ignore_errors=True)  # of a process that was killed before it was complete
        gather("removed")
        self._run.mkdir(parents=True, exist_ok=True)
        self.keep(step)
        self._begin(step, steps, shards, gather)
        if self._rank == 0:
            (self._run / _COMPLETE).touch()
            for run in runs:
                shutil.rmtree(self.folder / f"run-{run}")
        gather("anew")

    def turn(self, step: int, steps: Callable[[], int], shards: Sequence[Shard], gather: Gather) -> None:
        """Begin another base where `every` steps have passed and all ranks have written the one before. Collective,
        when owners have all rows, and no exchange runs.

        Args:
            steps: tells, in another thread, how many steps are trained.
        """
        base = self._bases[-1]
        is_done = base.valid.done()
        last = base.step if is_done and base.valid.result() <= step else -1
        told = gather([is_done, last])
        if base.step < step and all(done for done, _ in told):
            self._begin(step, steps, shards, gather)
            self._remove_before(min(complete for _, complete in told))

    def _begin(self, step: int, steps: Callable[[], int], shards: Sequence[Shard], gather: Gather) -> None:
        generation = self._generation(step)
        is_first = not self._generations()
        gather("looked at")
        self._close()
        try:
            generation.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise JournalError(f"the journal {generation.folder} cannot be made: {error}") from error
        self._writers = {lane: FrameWriter(self._path(generation, lane)) for lane in LANES}
        if self._path(generation, "base").exists():  # that of the step which was restored
            base = _Base(step, ran(lambda: step))
        else:
            if self._worker is None:
                self._worker = Worker("hvd_compress embedding journal")
                self._end = at_end(self, self._worker.stop, _END_S)
            # While it is written the step under way changes rows.
            valid = (lambda: step) if is_first else (lambda: steps() + 2)
            base = _Base(step, self._worker.submit(lambda: self._write_base(generation, valid, shards)))
        self._bases = [*self._bases[-1:], base]
        if is_first:
            base.valid.result()
        gather("begun")

    def restore(self, shards: Sequence[Shard], gather: Gather) -> int | None:
        """Load the last step that all ranks have, and return how many steps were trained then; None for none.

        Raises:
            JournalError: files of other ranks cannot be seen here, or are no journal.
        """
        self._restored = True
        self._close()
        for base in self._bases:
            base.valid.exception()  # whatever has come of it: it is of steps that are undone
        self._bases = []
        self._run = self.folder / f"run-{max(self._runs(), default=0)}"
        whole, start = self._last_whole()
        answers = gather([whole, None if start is None else start.step])
        for rank, other in enumerate(answers):
            if other != answers[self._rank]:
                raise JournalError(
                    f"rank {self._rank} finds the journal {self.folder} complete up to step {whole}, and rank {rank} "
                    f"up to {other[0]}: it must be a folder that all ranks share"
                )
        if start is None:
            return None
        for shard in shards:
            shard.used.zero_()
        for frame in self._frames(start, whole):
            if shards:
                _load(frame, shards[frame.part])
        if self._rank in self._trainers:
            state = torch.load(self._dense_path(whole), weights_only=False)
            for name, each in self._dense.items():
                each.load_state_dict(state["dense"][name])
            torch.set_rng_state(state["random"])
        gather("loaded")
        for generation in self._generations():
            for path in (self._path(generation, lane) for lane in LANES):
                if path.exists():
                    cut(path, whole)
            own = self._path(generation, "base")
            if own.exists() and max(read(own).ends) > whole:
                own.unlink()  # it has rows of steps that are undone
        for step in self._dense_steps(self._rank):
            if step > whole:
                self._dense_path(step).unlink()
        gather("cut")
        self.step = whole
        return whole

    def close(self) -> None:
        self._close()
        bases, self._bases = self._bases, []
        try:
            for base in bases:
                base.valid.result()
        finally:
            if self._worker is not None:
                self._end()
                self._worker = None

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _dense_path(self, step: int) -> Path:
        return self._run / f"dense.{self._rank}-of-{self._ranks}.{step}"

    def _path(self, generation: _Generation, what: str, rank: int | None = None) -> Path:
        return generation.folder / f"{what}.{self._rank if rank is None else rank}-of-{self._ranks}"

    def _generation(self, step: int) -> _Generation:
        return _Generation(self._run / f"from-{step}", step)

    def _generations(self) -> list[_Generation]:
        found = [re.fullmatch(r"from-(\d+)", path.name) for path in self._run.iterdir()] if self._run.exists() else []
        return sorted((self._generation(int(each[1])) for each in found if each), key=lambda each: each.step)

    def _runs(self) -> list[int]:
        """Return the numbers of trainings whose first base is complete; but for a moment there is one."""
        found = [re.fullmatch(r"run-(\d+)", path.name) for path in self.folder.iterdir()]
        return [int(each[1]) for each in found if each and (self.folder / each[0] / _COMPLETE).exists()]

    def _remove_before(self, step: int) -> None:
        """Remove what came before a base."""
        for generation in self._generations() if self._rank == 0 else []:
            if generation.step < step:
                shutil.rmtree(generation.folder)

    def _write_base(self, generation: _Generation, valid: Callable[[], int], shards: Sequence[Shard]) -> int:
        path = self._path(generation, "base")
        draft = path.with_name(f"{path.name}.partial")
        draft.unlink(missing_ok=True)
        writer = FrameWriter(draft)
        for part, shard in enumerate(shards):
            for rows in torch.split(shard.used.nonzero().flatten(), _CHUNK):
                writer.write(generation.step, part, shard.ids(rows), shard.read(rows))
        found = valid()
        writer.end(found)
        writer.close()
        draft.replace(path)
        return found

    def _last_whole(self) -> tuple[int, _Generation | None]:
        """Return the last step that all ranks have, and the last base that leads to it."""
        generations, ranks = self._generations(), range(self._ranks)
        if not generations:
            return 0, None
        least = min(self._last_end(rank, lane, generations) for rank in ranks for lane in LANES)
        common = set.intersection(*(self._dense_steps(rank) for rank in self._trainers))
        whole = max((step for step in common if step <= least), default=-1)
        for generation in reversed(generations):
            bases = [self._path(generation, "base", rank) for rank in ranks]
            if all(path.exists() for path in bases) and max(max(read(path).ends) for path in bases) <= whole:
                return whole, generation
        raise JournalError(f"{self._run} has no step that all ranks have: remove {self.folder}, and load a checkpoint")

    def _last_end(self, rank: int, lane: str, generations: Sequence[_Generation]) -> int:
        found = -1
        for generation in generations:
            path = self._path(generation, lane, rank)
            if path.exists():
                found = max(found, generation.step, *read(path).ends)
        return found

    def _dense_steps(self, rank: int) -> set[int]:
        names = [re.fullmatch(rf"dense\.{rank}-of-{self._ranks}\.(\d+)", path.name) for path in self._run.iterdir()]
        return {int(each[1]) for each in names if each}

    def _frames(self, start: _Generation, whole: int) -> Iterator[Frame]:
        """Return what must be loaded, in this order."""
        generations = [each for each in self._generations() if each.step >= start.step]
        for rank in range(self._ranks):
            yield from read(self._path(start, "base", rank)).frames
        paths = [self._path(each, lane, rank) for each in generations for lane in LANES for rank in range(self._ranks)]
        frames = [frame for path in paths if path.exists() for frame in read(path).frames]
        yield from sorted((frame for frame in frames if frame.step <= whole), key=lambda frame: frame.step)


def _load(frame: Frame, shard: Shard) -> None:
    ids, records = frame.load()
    mine = ids % shard.owners == shard.number
    records = records[mine]
    if shard.layout.debug:
        shard.layout.versions(records).zero_()
    shard.write(ids[mine] // shard.owners, records)
