"""When bases begin, what they hold, and which are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.embedding import Journal, journal
from hvd_compress.embedding.frames import read
from hvd_compress.engines.inprocess import InProcessEngine
from hvd_compress.errors import JournalError
from tests.embedding.test_journal import STEPS, Trained, in_ranks, newest, rows_of, whole

_LONG_S = 60.0  # a test that has failed ends


class Held:
    """Bases of one rank that wait, from that of a step on, until they may be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, step: int) -> None:
        self.begun, self.may_go_on, self.fails = threading.Event(), threading.Event(), False
        plain = Journal._write_base

        def write(this: Journal, generation: Any, *arguments: Any) -> int:
            if this.files.rank == rank and generation.step >= step:
                self.begun.set()
                assert self.may_go_on.wait(_LONG_S)
                if self.fails:
                    raise JournalError("no space")
            return plain(this, generation, *arguments)

        monkeypatch.setattr(Journal, "_write_base", write)


def steps_of(trained: Trained, behind: Callable[[int], None], until: int = STEPS) -> None:
    """Train, and call `behind` within each step, from 1 on; all ranks are there behind the step before."""
    loader = trained.loader(0)
    loader.restore()
    for step, ids in enumerate(loader, start=1):
        trained.engine.barrier_of_test()  # type: ignore[attr-defined]
        behind(step)
        trained.engine.barrier_of_test()  # type: ignore[attr-defined]
        (trained.top(trained.module(ids)) ** 2).sum().backward()
        trained.top.zero_grad()
        if step == until:
            break
    loader.close()


def with_barrier(world: int, body: Callable[[InProcessEngine], Any]) -> list[Any]:
    barrier = threading.Barrier(world)

    def rank(engine: InProcessEngine) -> Any:
        engine.barrier_of_test = lambda: barrier.wait(_LONG_S)  # type: ignore[attr-defined]
        return body(engine)

    return in_ranks(world, rank)


def begun(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("run-0/from-*"))


def written(journal: Journal | None) -> None:
    assert journal is not None
    wait([base.valid for base in journal._bases])


def test_a_base_waits_for_that_before_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the older one stays until all have the newer."""
    held, found = Held(monkeypatch, 1, 4), {}

    def body(engine: InProcessEngine) -> None:
        trained = Trained(engine, tmp_path, every=2)

        def behind(step: int) -> None:
            if engine.rank == 0:
                found[step] = begun(tmp_path)
            if step == 9:
                assert held.begun.is_set()
                held.may_go_on.set()
            if step in (4, 9, 12):
                written(trained.journal)

        steps_of(trained, behind, until=14)

    with_barrier(2, body)
    assert found[3] == [0, 2]
    assert found[5] in ([0, 2, 4], [2, 4]), "that of 2 may be good from step 5 on, so that of 0 is still there"
    assert found[5] == found[6] == found[7] == found[8] == found[9], "rank 1 still writes that of 4"
    assert found[11] in ([2, 4, 10], [4, 10])
    assert found[14] in ([4, 10, 12], [10, 12])


def test_a_base_that_another_rank_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, 1, 4)
    held.fails = True

    def body(engine: InProcessEngine) -> int:
        trained = Trained(engine, tmp_path, every=4)
        assert trained.journal is not None
        plain = trained.journal.write_dense

        def write_dense(step: int) -> None:
            plain(step)
            if step == 8 and engine.rank == 1:  # so the next base is what finds out
                held.may_go_on.set()
                written(trained.journal)

        trained.journal.write_dense = write_dense  # type: ignore[method-assign]
        loader = trained.loader(0)
        with pytest.raises(JournalError, match="no space"):  # noqa: PT012
            for ids in loader:
                (trained.top(trained.module(ids)) ** 2).sum().backward()
        steps = trained.module.steps
        if engine.rank == 1:
            with pytest.raises(JournalError, match="no space"):
                loader.close()
        else:
            loader.close()
        return steps

    assert in_ranks(2, body) == [8, 8]


def test_restoring_waits_for_a_base_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would come with rows of steps that are undone."""
    held = Held(monkeypatch, 0, 4)
    plain = Journal._close_writers
    restores = threading.Event()

    def close(self: Journal) -> None:
        plain(self)
        if restores.is_set():
            held.may_go_on.set()  # restore() has begun

    monkeypatch.setattr(Journal, "_close_writers", close)

    def body(engine: InProcessEngine) -> None:
        trained = Trained(engine, tmp_path, every=4)
        loader = trained.loader(0)
        for step, ids in enumerate(loader, start=1):
            (trained.top(trained.module(ids)) ** 2).sum().backward()
            if step == 6:
                break
        loader.collect()
        assert trained.journal is not None
        bases = list(trained.journal._bases)
        assert held.begun.wait(_LONG_S)
        assert engine.rank == 1 or not bases[-1].valid.done()
        restores.set()
        assert loader.restore() == 5
        assert all(base.valid.done() for base in bases)
        assert not list(tmp_path.glob("run-0/from-*/*.partial"))
        loader.close()

    in_ranks(2, body)


def test_a_base_of_steps_that_are_undone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time steps are trained on other batches."""
    held = Held(monkeypatch, 0, 4)

    def body(engine: InProcessEngine, turned: bool, until: int) -> Trained:
        trained = Trained(engine, None if until < 0 else tmp_path, every=4)
        if turned:
            trained.batches = trained.batches[:5] + trained.batches[:4:-1]
        if until == 6:
            loader = trained.loader(0)
            loader.restore()
            for step, ids in enumerate(loader, start=1):
                trained.step(ids)
                if step == until:
                    break
            loader.collect()
            if engine.rank == 0:
                held.may_go_on.set()  # so the base of 4 has rows of step 6, which has no dense part
            loader.close()
        else:
            trained.train(STEPS, restores=until > 0)
        return trained

    in_ranks(2, lambda engine: body(engine, False, 6))
    assert read(tmp_path / "run-0" / "from-4" / "base.0-of-2").ends.keys() == {8}
    found = rows_of(in_ranks(2, lambda engine: body(engine, True, STEPS)))
    expected = rows_of(in_ranks(2, lambda engine: body(engine, True, -1)))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def restored(engine: InProcessEngine, folder: Path) -> int:
    loader = Trained(engine, folder, every=4).loader(0)
    first = loader.restore()
    loader.close()
    return first


def test_only_bases_of_steps_that_are_undone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, 0, 4)

    def body(engine: InProcessEngine) -> None:
        def behind(step: int) -> None:
            if step == 6:
                held.may_go_on.set()

        steps_of(Trained(engine, tmp_path, every=4), behind, until=6)

    with_barrier(2, body)
    assert in_ranks(2, lambda engine: restored(engine, tmp_path)) == [5, 5]
    assert (tmp_path / "run-0" / "from-0" / "base.0-of-2").exists()
    assert not (tmp_path / "run-0" / "from-4" / "base.0-of-2").exists()


def test_bases_of_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_CHUNK", 3)

    def body(engine: InProcessEngine, until: int) -> Trained:
        trained = Trained(engine, tmp_path)
        trained.train(until, restores=True)
        return trained

    for until in (13, 14):
        in_ranks(2, lambda engine, until=until: body(engine, until))
    sizes = [frame.rows for frame in read(newest(tmp_path) / "base.0-of-2").frames]
    assert len(sizes) > 1
    assert max(sizes) == 3
    for found, expected in zip(rows_of(in_ranks(2, lambda engine: body(engine, STEPS))), whole(2), strict=True):
        assert torch.equal(found, expected)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    """Of torch on the CPU: masks of a dropout are those of the whole training."""

    def dropped(engine: InProcessEngine, where: Path | None, until: int, seed: int) -> tuple[Trained, int]:
        torch.manual_seed(seed)
        trained = Trained(engine, where)
        loader = trained.loader(0)
        first = 0 if where is None else loader.restore()
        loader._loader = trained.batches[first:]
        for step, ids in enumerate(loader, start=first + 1):
            values = torch.nn.functional.dropout(trained.module(ids), 0.5)
            (trained.top(values) ** 2).sum().backward()
            if step == until:
                break
        loader.close()
        return trained, first

    state = torch.get_rng_state()
    try:
        ((expected, _),) = in_ranks(1, lambda engine: dropped(engine, None, STEPS, 7))
        in_ranks(1, lambda engine: dropped(engine, tmp_path, 9, 7))
        ((found, first),) = in_ranks(1, lambda engine: dropped(engine, tmp_path, STEPS, 99))
    finally:
        torch.set_rng_state(state)
    assert first == 8
    assert torch.equal(rows_of([found])[0], rows_of([expected])[0])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_bases_that_come_fast_do_not_pile_up(tmp_path: Path, every: int) -> None:
    """One that is written while steps go on is good from a later step on, by which the next has begun."""
    expected = whole(2)

    def body(engine: InProcessEngine) -> None:
        trained = Trained(engine, tmp_path, every=every)
        loader = trained.loader(0)
        for ids in loader:
            assert trained.journal is not None
            wait([base.valid for base in trained.journal._bases])
            trained.step(ids)
            if trained.module.steps == STEPS - 4:
                break
        loader.close()

    in_ranks(2, body)
    begun = sorted(int(path.name[5:]) for path in tmp_path.glob("run-0/from-*"))
    assert begun[0] >= STEPS - 4 - 4 * every

    def again(engine: InProcessEngine) -> Trained:
        trained = Trained(engine, tmp_path, every=every)
        assert trained.train(restores=True) >= STEPS - 5
        return trained

    rows, weight = rows_of(in_ranks(2, again))
    assert torch.equal(rows, expected[0])
    assert torch.equal(weight, expected[1])
