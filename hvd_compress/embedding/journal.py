"""What each step has changed, on disk: a job that was killed goes on behind the last step that all ranks have.

Each rank appends the records of rows that it has updated to two files, one for each lane of exchanges, and writes the
state of the dense part once a step. From time to time owners write all their rows besides, a base, while training goes
on: rows that change meanwhile are in the journal, too. So a base and the journal behind it give the rows of any step
from the one on in which the base was finished (fuzzy checkpoints; Mohan et al. 1992, ARIES).
"""

from __future__ import annotations

import operator
import pickle
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hvd_compress.checks import check_whole
from hvd_compress.embedding.frames import Frame, FrameWriter
from hvd_compress.embedding.journal_folder import LANES, Generation, JournalFolder
from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import ConfigError, HvdCompressError, JournalError, UsageError
from hvd_compress.session.worker import Worker, ran

_KEPT = 8  # states of the dense part: ranks are two steps apart, a lane is two behind, and files may be damaged
_END_S = 10.0
_CHUNK = 1 << 16  # rows of a base that are written at a time


class AgreedJournalError(JournalError):
    """All ranks have told each other, and raise it alike: nothing is left that another one waits for."""


class Training(NamedTuple):
    """The training that a journal is of.

    Attributes:
        steps: tells, in any thread, how many steps are trained.
        gather: returns what all ranks have passed.
    """

    steps: Callable[[], int]
    shards: Sequence[Shard]
    gather: Callable[[Any], Sequence[Any]]


class _Base(NamedTuple):
    """`valid` holds when it is written: how many steps must be trained for the journal to complete it."""

    step: int
    valid: Future[int]

    def leads_to(self, step: int) -> bool:
        return self.valid.done() and self.failed is None and self.valid.result() <= step

    @property
    def failed(self) -> BaseException | None:
        return self.valid.exception() if self.valid.done() else None


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
        check_whole("every", every, 1, of="steps of a Journal")
        for name, each in self._dense.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise ConfigError(f"{name!r} of a Journal has no state_dict() and load_state_dict(): {each!r}")
        self.step = -1
        self._files: JournalFolder | None = None
        self._users = 0  # Lookaheads
        self._name = uuid.uuid4().hex
        self._identity: dict[str, Any] = {}
        self._shards: Sequence[Shard] = ()
        self._restored = False
        self._writers: dict[str, FrameWriter] = {}
        self._bases: list[_Base] = []
        self._worker: Worker | None = None

    def open(self, rank: int, ranks: int, trainers: Sequence[int], layouts: Sequence[Layout]) -> None:
        """Take a place among ranks. Local.

        Raises:
            ConfigError: the folder, or this object, has the journal of other tables, or of another number of ranks.
            JournalError: another process writes it; or it cannot be made, or read.
        """
        identity = {
            "ranks": ranks,
            "servers": ranks - len(trainers),
            "debug": layouts[0].debug,
            "tables": [layout.identity for layout in layouts],
        }
        if self._identity and identity != self._identity:
            raise ConfigError(f"a Journal is of {self._identity}, and this is {identity}: make one for each")
        if self._files is None:
            files = JournalFolder(self.folder, rank, ranks, trainers)
            try:
                is_ours = files.claim(identity, self._name)
            except HvdCompressError:
                files.release()
                raise
            self._files, self._identity = files, identity
            if not is_ours:  # whatever was restored, another job may have gone on
                self.step, self._restored = -1, False
        self._users += 1

    @property
    def files(self) -> JournalFolder:
        assert self._files is not None
        return self._files

    def forget(self) -> None:
        """Rows were loaded: the next training begins a journal anew."""
        self.step = -1

    def write_dense(self, step: int) -> None:
        """Write the dense part as `step` steps have left it; servers have none.

        Raises:
            JournalError: it cannot be written; or a base, in the background.
        """
        self.step = step
        if self._bases and (failure := self._bases[-1].failed) is not None:
            raise failure
        if self.files.rank not in self.files.trainers:
            return
        state = {name: each.state_dict() for name, each in self._dense.items()}
        path = self.files.dense(step)
        draft = path.with_name(f"{path.name}.partial")
        try:
            torch.save({"dense": state, "random": torch.get_rng_state()}, draft)
            draft.replace(path)
            self.files.dense(step - _KEPT).unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch.save raises the latter where a disk is full
            raise JournalError(f"cannot write the journal {path}: {error}") from error

    def write(self, lane: str, step: int, part: int, ids: torch.Tensor, records: torch.Tensor) -> None:
        """Append records (n, width) of rows (n,) that a step has changed; the `step`th one, from 1 on."""
        self._writers[lane].write(step, part, ids, records)

    def end(self, lane: str, step: int) -> None:
        """All that a step has changed in a lane was appended."""
        self._writers[lane].end(step)

    def start(self, training: Training) -> None:
        """Be ready for a training that begins now, when owners have all rows. Collective.

        What the journal has stays where it leads to this step; else it is of another training, and begins anew.

        Raises:
            UsageError: it has a training, and restore() was not called.
            JournalError: it cannot be written.
        """
        step, files = training.steps(), self.files
        is_same = step == self.step and self._is_of(training)
        states = training.gather([is_same, bool(self._writers), self._restored])
        is_same = all(same for same, _, _ in states)
        if is_same and all(writes for _, writes, _ in states):
            return
        runs = files.runs()
        if runs and not all(restored for _, _, restored in states):
            raise UsageError(
                f"{self.folder} has the journal of a training: call restore() before the first loop, or remove it"
            )
        training.gather("looked")
        self._restored, self._shards = True, training.shards
        if is_same:
            self._begin_base(step, training)
            return
        self._forget_bases()
        files.choose_run(max(runs, default=-1) + 1)
        if files.rank == 0:
            files.remove_incomplete()
        training.gather("removed")
        files.run.mkdir(parents=True, exist_ok=True)
        self.write_dense(step)
        self._begin_base(step, training)
        if files.rank == 0:
            files.complete_run()
        training.gather("complete")
        for rank, sees in enumerate(training.gather(files.is_complete())):
            if not sees:
                raise AgreedJournalError(
                    f"rank {rank} does not see what rank 0 has written to {self.folder}: it must be a folder that all "
                    "ranks share"
                )
        for run in runs if files.rank == 0 else []:
            files.remove_run(run)
        training.gather("anew")

    def _is_of(self, training: Training) -> bool:
        """Whether these are the tables that it has written last."""
        return len(self._shards) == len(training.shards) and all(map(operator.is_, self._shards, training.shards))

    def renew_base(self, step: int, training: Training) -> None:
        """Begin another base where all ranks have written the one before. Collective, when owners have all rows as
        `step` steps have left them, and no exchange runs.

        Raises:
            JournalError: the one before could not be written.
        """
        base = self._bases[-1]
        is_done, failure = base.valid.done(), base.failed
        last = max((each.step for each in self._bases if each.leads_to(step)), default=-1)
        answers = training.gather([is_done, last, "" if failure is None else str(failure)])
        if failed := [why for _, _, why in answers if why]:
            raise AgreedJournalError(failed[0])
        if base.step < step and all(done for done, _, _ in answers):
            self._begin_base(step, training)
            complete = min(last for _, last, _ in answers)
            self._bases = [each for each in self._bases if each.step >= complete]
            if self.files.rank == 0:
                self.files.remove_before(complete)

    def _begin_base(self, step: int, training: Training) -> None:
        generation = self.files.generation(step)
        is_first = not self.files.generations()
        training.gather("looked at")
        self._close_writers()
        try:
            generation.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise JournalError(f"the journal {generation.folder} cannot be made: {error}") from error
        self._writers = {lane: FrameWriter(self.files.path(generation, lane)) for lane in LANES}
        if self.files.path(generation, "base").exists():  # that of the step which was restored
            base = _Base(step, ran(lambda: step))
        else:
            if self._worker is None:
                self._worker = Worker("hvd_compress embedding journal")
                self._end = at_end(self, self._worker.stop, _END_S)
            # While it is written the step under way changes rows.
            valid = (lambda: step) if is_first else (lambda: training.steps() + 2)
            base = _Base(step, self._worker.submit(lambda: self._write_base(generation, valid, training.shards)))
        self._bases.append(base)
        if is_first:
            base.valid.result()
        training.gather("begun")

    def _write_base(self, generation: Generation, valid: Callable[[], int], shards: Sequence[Shard]) -> int:
        path = self.files.path(generation, "base")
        draft = path.with_name(f"{path.name}.partial")
        writer = FrameWriter(draft, anew=True)
        for part, shard in enumerate(shards):
            for rows in torch.split(shard.used.nonzero().flatten(), _CHUNK):
                writer.write(generation.step, part, shard.ids(rows), shard.read(rows))
        found = valid()
        writer.end(found)
        writer.close()
        draft.replace(path)
        return found

    def restore(self, training: Training) -> int | None:
        """Load the last step that all ranks have, and return how many steps were trained then; None for none.

        Raises:
            JournalError: files of other ranks cannot be seen here, or are no journal.
        """
        files = self.files
        self._restored, self._shards = True, training.shards
        self._close_writers()
        self._forget_bases()
        files.choose_run(max(files.runs(), default=0))
        whole, start, why = -1, None, ""
        try:
            whole, start = files.last_whole()
        except JournalError as error:
            why = str(error)
        answers = training.gather([whole, None if start is None else start.step])
        for rank, other in enumerate(answers):
            if other != answers[files.rank]:
                raise AgreedJournalError(
                    f"rank {files.rank} finds the journal {self.folder} complete up to step {whole}, and rank {rank} "
                    f"up to {other[0]}: it must be a folder that all ranks share"
                )
        if why:
            raise AgreedJournalError(why)
        if start is None:
            return None
        try:
            self._load(start, whole, training.shards)
        except HvdCompressError as error:  # of this rank alone
            why = str(error)
        for rank, other in enumerate(training.gather(why)):
            if other:
                raise AgreedJournalError(f"rank {rank} cannot restore step {whole}: {other}")
        files.cut_behind(whole)
        training.gather("cut")
        self.step = whole
        return whole

    def _forget_bases(self) -> None:
        """Whatever comes of them: they are of steps that are undone, or of a run that is removed."""
        for base in self._bases:
            base.valid.exception()
        self._bases = []

    def _load(self, start: Generation, whole: int, shards: Sequence[Shard]) -> None:
        for shard in shards:
            shard.used.zero_()
        for frame in self.files.frames(start, whole):
            _load(frame, shards[frame.part])
        if self.files.rank in self.files.trainers:
            self._load_dense(self.files.dense(whole))

    def _load_dense(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as file:
                damaged = file.testzip()
            state = None if damaged else torch.load(path, weights_only=False)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            raise JournalError(f"cannot read {path}, the dense part of a journal: {error}") from error
        if state is None:
            raise JournalError(f"{path} is damaged: remove it, and an older step is taken")
        saved = state["dense"]
        for name, each in self._dense.items():
            if name not in saved:
                raise ConfigError(f"{path} has {', '.join(sorted(saved))}, and this Journal was given {name}, too")
            try:
                each.load_state_dict(saved[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}, {name}: {error}") from error
        torch.set_rng_state(state["random"])

    def close(self) -> None:
        """A Lookahead is closed. Behind the last one: write what is begun, and let other processes have the folder.

        Raises:
            JournalError: a base could not be written.
        """
        self._users -= 1
        if self._users:
            return
        bases, self._bases = self._bases, []
        try:
            self._close_writers()
            for base in bases:
                base.valid.result()
        finally:
            if self._worker is not None:
                self._end()
                self._worker = None
            if self._files is not None:
                self._files.release()
                self._files = None

    def _close_writers(self) -> None:
        writers, self._writers = self._writers, {}
        with ExitStack() as stack:  # closes all, whatever one raises
            for writer in writers.values():
                stack.callback(writer.close)


def _load(frame: Frame, shard: Shard) -> None:
    ids, records = frame.load()
    if shard.layout.debug:
        shard.layout.versions(records).zero_()
    shard.load(ids, records)
