"""A journal brings back the last step that all ranks have, wherever processes were killed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.embedding import Adagrad, CachedEmbedding, Journal, Lookahead, journal_folder
from hvd_compress.embedding.frames import FrameWriter, cut, read
from hvd_compress.embedding.journal_folder import JournalFolder
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, JournalError, UsageError
from tests.embedding.test_loader import batches_of, table

STEPS = 23


class Trained:
    """One rank's training: an embedding, and a layer on top whose gradients are summed over ranks."""

    def __init__(
        self, engine: InProcessEngine, where: Path | None, every: int = 5, apart: bool = False, **settings: Any
    ) -> None:
        """`apart`: each step uses rows that none before has used."""
        self.engine = engine
        self.batches = batches_of(engine.rank, STEPS)
        if apart:
            self.batches = [torch.cat([ids, ids[-1:] + 20 + 2 * step]) for step, ids in enumerate(self.batches)]
        self.module = CachedEmbedding(70 if apart else 20, 2, optimizer=Adagrad(0.05), **settings)
        self.top = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.top.weight.fill_(0.5)
            self.top.bias.zero_()
        self.journal = None if where is None else Journal(where, {"top": self.top}, every=every)

    def loader(self, first: int, **settings: Any) -> Lookahead:
        batches = self.batches[first:]
        settings = {"cache_rows": 30, "lookahead": 3, "debug": True, "journal": self.journal} | settings
        return Lookahead(batches, {lambda batch: batch: self.module}, engine=self.engine, **settings)

    def step(self, ids: torch.Tensor) -> None:
        """Train on a batch, and sum the layer's gradients over ranks."""
        (self.top(self.module(ids)) ** 2).sum().backward()
        gradient = self.top.weight.grad
        assert gradient is not None
        with torch.no_grad():
            self.top.weight -= 0.01 * sum(self.engine.allgather(gradient.view(-1), [2] * self.engine.world_size))
        self.top.zero_grad()

    def train(self, until: int = STEPS, restores: bool = False, saves: bool = False) -> int:
        """Return with how many steps it began. `saves`: a state_dict() behind each step."""
        loader = self.loader(0)
        first = loader.restore() if restores else 0
        loader._loader = self.batches[first:]
        for step, ids in enumerate(loader, start=first + 1):
            self.step(ids)
            if saves:
                loader.state_dict()
            if step == until:
                break
        loader.close()
        return first


def in_ranks(world: int, body: Callable[[InProcessEngine], Any]) -> list[Any]:
    return run_ranks(world, body)


def whole(world: int, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    def body(engine: InProcessEngine) -> Trained:
        trained = Trained(engine, None, **settings)
        trained.train()
        return trained

    return rows_of(in_ranks(world, body))


def rows_of(ranks: list[Trained]) -> tuple[torch.Tensor, torch.Tensor]:
    records = table([each.module for each in ranks])
    return torch.cat([records[:, :2], records[:, 3:]], dim=1), ranks[0].top.weight.detach()


def killed(folder: Path, draw: random.Random, world: int) -> None:
    """Do to files what kills at any moment do: each ends somewhere within the last steps."""
    for path in sorted(newest(folder).iterdir()):
        if path.name.startswith("base"):
            if len(list(folder.glob("run-*/from-*"))) > 1 and draw.random() < 0.3:
                path.rename(path.with_name(f"{path.name}.partial"))
            continue
        size, ends = path.stat().st_size, read(path).ends
        least = sorted(ends.values())[-3] if len(ends) > 2 else 0
        os.truncate(path, draw.randint(least, size))


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_any_moment(tmp_path: Path, world: int, seed: int) -> None:
    draw = random.Random(seed)
    expected = whole(world)
    moments = sorted(draw.sample(range(2, STEPS), 3))

    def body(engine: InProcessEngine, until: int) -> tuple[Trained, int]:
        trained = Trained(engine, tmp_path)
        return trained, trained.train(until, restores=True)

    least = 0
    for moment in moments:
        firsts = [first for _, first in in_ranks(world, lambda engine, moment=moment: body(engine, moment))]
        assert set(firsts) == {firsts[0]}
        assert firsts[0] >= least
        killed(tmp_path, draw, world)
        least = min(firsts[0] + 1, moment) - 3
    found = in_ranks(world, lambda engine: body(engine, STEPS))
    assert found[0][1] >= moments[-1] - 4
    rows, weight = rows_of([trained for trained, _ in found])
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_old_bases_are_removed(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path, every=4).train()

    in_ranks(2, body)
    steps = sorted(int(path.name[5:]) for path in tmp_path.glob("run-*/from-*"))
    assert steps == [16, 20], "a base begins when all ranks have written the one before, which is kept"
    dense = sorted(int(path.suffix[1:]) for path in tmp_path.glob("run-*/dense.0-of-2.*"))
    assert dense == list(range(STEPS - 8, STEPS))


def test_rows_in_files(tmp_path: Path) -> None:
    """They are as they were changed last, and what a restart wants is older: also rows that were not used by then."""
    expected = whole(2, apart=True)

    def body(engine: InProcessEngine, until: int) -> Trained:
        trained = Trained(engine, tmp_path / "journal", apart=True, folder=tmp_path / "rows")
        trained.train(until, restores=True)
        return trained

    def used(ranks: list[Trained]) -> int:
        return sum(int(each.module.own_shard.used.sum()) for each in ranks)

    before = used(in_ranks(2, lambda engine: body(engine, 10)))
    (newest_run,) = (tmp_path / "journal").glob("run-*")
    for path in newest_run.glob("from-*/later.*"):
        cut(path, 6)
    assert used(in_ranks(2, lambda engine: body(engine, 7))) < before
    rows, _ = rows_of(in_ranks(2, lambda engine: body(engine, STEPS)))
    assert torch.equal(rows, expected[0])


def test_a_journal_is_not_overwritten(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path).train(4)
        with pytest.raises(UsageError, match=r"call restore\(\) before the first loop"):
            Trained(engine, tmp_path).train(4)

    in_ranks(1, body)


def test_rows_that_were_trained_without_it(tmp_path: Path) -> None:
    """A journal of other steps begins anew, with all rows."""
    expected = whole(2)

    def body(engine: InProcessEngine) -> Trained:
        trained = Trained(engine, tmp_path)
        trained.train(4)
        without = trained.loader(4, journal=None)
        with_it = trained.loader(5)
        for loader, last in ((without, 5), (with_it, 9)):
            for ids in loader:
                trained.step(ids)
                if trained.module.steps + 1 == last:
                    break
            loader.close()
        again = Trained(engine, tmp_path)
        assert again.train(restores=True) == 8, "a loop that is left has no dense part of its last step"
        return again

    rows, weight = rows_of(in_ranks(2, body))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_a_loop_that_is_left_does_not_come_behind_what_is_restored(tmp_path: Path) -> None:
    expected = whole(2)

    def body(engine: InProcessEngine) -> Trained:
        trained = Trained(engine, tmp_path)
        loader = trained.loader(0)
        for ids in loader:
            (trained.top(trained.module(ids)) ** 2).sum().backward()
            trained.top.zero_grad()
            break
        assert loader.restore() == 0
        loader.close()
        assert trained.train(restores=True) == 0
        return trained

    rows, weight = rows_of(in_ranks(2, body))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_evaluations_leave_it_alone(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> int:
        trained = Trained(engine, tmp_path)
        trained.train(6)
        for ids in trained.loader(0, trains=False, journal=None):
            trained.module(ids)
        return trained.train(restores=True)

    assert in_ranks(2, body) == [5, 5]


def test_errors(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path).train(4)
        other = Trained(engine, tmp_path)
        other.module = CachedEmbedding(21, 2, optimizer=Adagrad(0.05))
        with pytest.raises(ConfigError, match="has the journal of"):
            other.train(restores=True)
        with pytest.raises(UsageError, match="needs a journal"):
            Trained(engine, None).train(restores=True)

    in_ranks(1, body)
    with pytest.raises(ConfigError, match="every = 0"):
        Journal(tmp_path, every=0)
    with pytest.raises(ConfigError, match="'top' of a Journal has no state_dict"):
        Journal(tmp_path, {"top": 3})
    (tmp_path / "run-0" / "from-0" / "later.0-of-1").write_bytes(b"something else" * 9)
    with pytest.raises(JournalError, match="is no journal of embedding rows"):
        read(tmp_path / "run-0" / "from-0" / "later.0-of-1")
    with pytest.raises(JournalError, match="cannot write the journal"):
        FrameWriter(tmp_path)


def test_a_rank_that_does_not_see_the_files_of_others(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path / "shared").train(4)

    in_ranks(2, body)
    shutil.copytree(tmp_path / "shared", tmp_path / "other")
    cut(tmp_path / "other" / "run-0" / "from-0" / "critical.0-of-2", 2)

    def restored(engine: InProcessEngine) -> None:
        with pytest.raises(JournalError, match="a folder that all ranks share"):
            Trained(engine, tmp_path / ("shared", "other")[engine.rank]).train(restores=True)

    in_ranks(2, restored)


def test_frames_that_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    writer = FrameWriter(path)
    ids, records = torch.tensor([3, 5]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for step in (1, 2):
        writer.write(step, 0, ids + step, records * step)
        writer.write(step, 1, ids[:0], records[:0])
        writer.end(step)
    writer.close()
    content = path.read_bytes()
    first = read(path).ends[1]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        found = read(path)
        assert list(found.ends) == [1, 2][: (size >= first) + (size == len(content))]
        for frame in found.frames:
            if frame.part == 0:
                loaded, values = frame.load()
                assert torch.equal(loaded, ids + frame.step)
                assert torch.equal(values, records * frame.step)
    cut(path, 1)
    assert path.stat().st_size == first
    cut(path, 0)
    assert path.stat().st_size == 0


def newest(folder: Path) -> Path:
    return max(folder.glob("run-*/from-*"), key=lambda path: int(path.name[5:]))


def test_what_only_some_ranks_have_is_removed(tmp_path: Path) -> None:
    """It would be taken for whole when the others have trained these steps again, in whatever way."""

    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path).train(18)

    in_ranks(2, body)
    cut(newest(tmp_path) / "later.1-of-2", 16)

    def restored(engine: InProcessEngine) -> int:
        trained = Trained(engine, tmp_path)
        loader = trained.loader(0)
        found = loader.restore()
        loader.close()
        return found

    assert in_ranks(2, restored) == [16, 16]
    assert max(max(read(path).ends) for path in newest(tmp_path).iterdir() if path.name[0] in "cl") == 16
    assert max(int(path.suffix[1:]) for path in tmp_path.glob("run-*/dense.*")) == 16


def test_a_base_that_is_newer_than_the_last_whole_step(tmp_path: Path) -> None:
    """It was written while rows changed: the one before is taken."""
    expected = whole(2)

    def body(engine: InProcessEngine, until: int) -> Trained:
        trained = Trained(engine, tmp_path)
        trained.train(until, restores=True)
        return trained

    in_ranks(2, lambda engine: body(engine, 18))
    base = newest(tmp_path) / "base.0-of-2"
    assert max(read(base).ends) >= 15 + 2, "a step under way may have changed rows"
    base.unlink()
    writer = FrameWriter(base)
    writer.write(15, 0, torch.arange(0, 20, 2), torch.full((10, 5), torch.nan))
    writer.end(17)
    writer.close()
    for path in newest(tmp_path).glob("later.*"):
        cut(path, 16)
    rows, weight = rows_of(in_ranks(2, lambda engine: body(engine, STEPS)))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_checkpoints_within_a_loop(tmp_path: Path) -> None:
    """They bring rows home, and change nothing of the journal."""
    expected = whole(2)

    def body(engine: InProcessEngine, until: int) -> tuple[Trained, int]:
        trained = Trained(engine, tmp_path)
        return trained, trained.train(until, restores=True, saves=True)

    for until, begun in ((9, 0), (11, 8), (STEPS, 10)):
        found = in_ranks(2, lambda engine, until=until: body(engine, until))
        assert [first for _, first in found] == [begun, begun]
    assert newest(tmp_path).name == "from-20"
    rows, weight = rows_of([trained for trained, _ in found])
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


@pytest.mark.parametrize("moment", ["no base", "some bases", "old one there", "old one half removed"])
def test_kills_while_a_journal_begins_anew(tmp_path: Path, moment: str) -> None:
    """A loop that is left makes it do so: what was there before is kept until all of the new one is."""

    def body(engine: InProcessEngine, until: int) -> Trained:
        trained = Trained(engine, tmp_path)
        trained.train(until, restores=True)
        return trained

    in_ranks(2, lambda engine: body(engine, 8))
    old = tmp_path / "old"
    shutil.copytree(tmp_path / "run-0", old)
    loops = in_ranks(2, lambda engine: (trained := body(engine, 9)).train(10, restores=False) or trained)
    assert loops[0].module.steps > 9
    new = tmp_path / "run-1"
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-1"]
    if moment == "old one half removed":
        shutil.rmtree(old / "from-5")
    if moment.startswith("old one"):
        old.rename(tmp_path / "run-0")
        assert max(JournalFolder(tmp_path, 0, 2, [0, 1]).runs()) == 1
        return
    old.rename(tmp_path / "run-0")
    (new / "complete").unlink()
    for path in list(new.glob("from-*/base.*"))[int(moment == "some bases") :]:
        path.unlink()
    expected = whole(2)
    rows, weight = rows_of(in_ranks(2, lambda engine: body(engine, STEPS)))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_rows_that_are_loaded_at_the_same_step(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor]:
        trained = Trained(engine, tmp_path)
        loader = trained.loader(0)
        for ids in loader:
            (trained.top(trained.module(ids)) ** 2).sum().backward()
            if trained.module.steps + 1 == 4:
                state = loader.state_dict()
        state["embedding"]["steps"] = STEPS
        state["embedding"]["values"] += 1.0
        loader.load_state_dict(state)
        loader._loader = []
        for _ in loader:
            pass
        loader.close()
        again = Trained(engine, tmp_path)
        loader = again.loader(0)
        assert loader.restore() == STEPS
        loader.close()
        assert trained.module.shard is not None
        assert again.module.shard is not None
        loaded, restored = (shard.read(torch.arange(10))[:, :2] for shard in (trained.module.shard, again.module.shard))
        return loaded, restored

    for loaded, restored in in_ranks(2, body):
        assert torch.equal(loaded, restored)


def test_what_a_loss_of_power_leaves(tmp_path: Path) -> None:
    """Files whose content has not come to the disk: an older step is taken, and an older base."""
    expected = whole(2)

    def body(engine: InProcessEngine, until: int) -> tuple[Trained, int]:
        trained = Trained(engine, tmp_path)
        return trained, trained.train(until, restores=True)

    in_ranks(2, lambda engine: body(engine, 18))
    os.truncate(tmp_path / "run-0" / "dense.1-of-2.17", 0)
    os.truncate(newest(tmp_path) / "base.0-of-2", 40)
    with (newest(tmp_path) / "critical.0-of-2").open("ab") as file:
        file.write(bytes(1000))
    found = in_ranks(2, lambda engine: body(engine, STEPS))
    assert [first for _, first in found] == [16, 16]
    rows, weight = rows_of([trained for trained, _ in found])
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_nothing_whole(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path).train(4)
        for path in tmp_path.glob("run-0/dense.*"):
            os.truncate(path, 0)
        with pytest.raises(JournalError, match=r"has no step that all ranks have: remove .* load a checkpoint"):
            Trained(engine, tmp_path).train(restores=True)

    in_ranks(1, body)


def test_another_job_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_folder, "_LOCK_S", 0.2)

    def body(engine: InProcessEngine) -> None:
        first = Trained(engine, tmp_path)
        loader = first.loader(0)
        for ids in loader:
            (first.top(first.module(ids)) ** 2).sum().backward()
        with pytest.raises(JournalError, match=r"rank 0: the journal .* is written by another process"):
            Trained(engine, tmp_path).train(restores=True)
        loader.close()
        assert Trained(engine, tmp_path).train(restores=True) == STEPS

    in_ranks(1, body)


@pytest.mark.level1
def test_a_lock_of_a_process_that_ends(tmp_path: Path) -> None:
    """The next job waits for it."""
    program = f"""
import fcntl, os, time
lock = os.open({str(tmp_path / "lock.0-of-1")!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(1.0)
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    in_ranks(1, lambda engine: Trained(engine, tmp_path).train(4))
    assert other.wait() == 0
    other.stdout.close()


def test_two_lookaheads_with_one_journal(tmp_path: Path) -> None:
    """It is written until the last one is closed; an evaluation has no part in it."""
    expected = whole(2)

    def body(engine: InProcessEngine) -> Trained:
        trained = Trained(engine, tmp_path)
        loaders = [trained.loader(first) for first in (0, 9)]
        loaders[0]._loader = batches_of(engine.rank, 9)
        for loader in loaders:
            reader = trained.loader(0, trains=False)
            for ids in reader:
                trained.module(ids)
            with pytest.raises(UsageError, match="a Lookahead that trains"):
                reader.restore()
            for step, ids in enumerate(loader):
                if step == 3:
                    reader.close()
                trained.step(ids)
            if loader is loaders[0]:
                loaders[1].open()
                loader.close()
        loaders[1].close()
        again = Trained(engine, tmp_path)
        assert again.train(restores=True) == STEPS
        return again

    rows, weight = rows_of(in_ranks(2, body))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])


def test_a_base_that_cannot_be_written(tmp_path: Path) -> None:
    """The next step says so: without it files grow, and a restart takes long."""

    def body(engine: InProcessEngine) -> None:
        trained = Trained(engine, tmp_path)
        loader = trained.loader(0)
        with pytest.raises(JournalError, match=r"cannot write the journal .*from-5/base.0-of-1.partial"):  # noqa: PT012
            for ids in loader:
                (trained.top(trained.module(ids)) ** 2).sum().backward()
                if trained.module.steps == 2:
                    (tmp_path / "run-0" / "from-5" / "base.0-of-1.partial").mkdir(parents=True)
                if trained.module.steps == 5:
                    assert trained.journal is not None
                    wait([trained.journal._bases[-1].valid])
        assert trained.module.steps == 5
        with pytest.raises(JournalError, match="cannot write the journal"):
            loader.close()

    in_ranks(1, body)


def test_a_journal_of_another_kind(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        Trained(engine, tmp_path).train(4)
        with pytest.raises(ConfigError, match=r"'debug': True.*'debug': False"):
            Trained(engine, tmp_path).loader(0, debug=False).restore()
        other = Trained(engine, tmp_path)
        other.journal = Journal(tmp_path, {"other": other.top})
        with pytest.raises(
            JournalError,
            match=r"rank 0 cannot restore step 3: .*dense.0-of-1.3 has top, and this Journal was given other, too",
        ):
            other.train(restores=True)

    in_ranks(1, body)
