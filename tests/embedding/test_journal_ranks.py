"""Ranks, and Lookaheads, that differ in what they journal: they are refused, on all ranks alike."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.embedding import SGD, CachedEmbedding, Journal, Lookahead, journal_folder
from hvd_compress.engines.inprocess import InProcessEngine
from hvd_compress.errors import ConfigError, JournalError, UsageError
from tests.embedding.test_journal import Trained, in_ranks
from tests.embedding.test_loader import batches_of


def two(engine: InProcessEngine, turned: bool, *modules: CachedEmbedding, **settings: Any) -> Lookahead:
    """Over batches that are pairs of ids."""
    embeddings = dict(enumerate(modules))
    batches = [(ids, ids) for ids in batches_of(engine.rank, 4)]
    return Lookahead(
        batches,
        dict(reversed(embeddings.items())) if turned else embeddings,
        engine=engine,
        **{"cache_rows": 20, "lookahead": 2} | settings,
    )


def pair() -> tuple[CachedEmbedding, CachedEmbedding]:
    return CachedEmbedding(20, 2, name="users"), CachedEmbedding(20, 2, name="items")


def test_ranks_that_give_embeddings_in_different_order() -> None:
    def body(engine: InProcessEngine) -> None:
        loader = two(engine, engine.rank == 1, *pair())
        words = r"embeddings is \['users', 'items'\] on rank 0 and \['items', 'users'\] on rank 1"
        with pytest.raises(ConfigError, match=words):
            next(iter(loader))

    in_ranks(2, body)


@pytest.mark.parametrize("name", ["journal", "lookahead", "cache_rows", "embeddings"])
@pytest.mark.parametrize("differs", ["lr", "every", "lookahead", "cache_rows"])
def test_the_name_of_an_embedding_hides_no_setting(tmp_path: Path, name: str, differs: str) -> None:
    def body(engine: InProcessEngine) -> None:
        def mine(what: str, value: int) -> int:
            return value + engine.rank if what == differs else value

        module = CachedEmbedding(20, 2, optimizer=SGD(float(mine("lr", 1))), name=name)
        loader = Lookahead(
            batches_of(engine.rank, 4),
            {lambda ids: ids: module},
            cache_rows=mine("cache_rows", 20),
            lookahead=mine("lookahead", 2),
            journal=Journal(tmp_path, every=mine("every", 5)),
            engine=engine,
        )
        setting = {"lr": f"embedding {name}", "every": "journal"}.get(differs, differs)
        with pytest.raises(ConfigError, match=rf"all ranks must ask for the same: {setting} is .* on rank 1"):
            next(iter(loader))

    in_ranks(2, body)


def test_one_journal_is_not_of_embeddings_in_another_order(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        journal, modules = Journal(tmp_path), pair()
        first, second = (two(engine, turned, *modules, journal=journal) for turned in (False, True))
        first.open()
        with pytest.raises(ConfigError, match="make one for each"):
            second.open()
        first.close()
        with pytest.raises(ConfigError, match="make one for each"):
            second.open()

    in_ranks(2, body)


def test_a_journal_that_another_one_has_written_since(tmp_path: Path) -> None:
    """What it has restored or written before does not tell what the folder has."""

    def body(engine: InProcessEngine) -> None:
        first, other = Trained(engine, tmp_path), Trained(engine, tmp_path)
        coming, first.batches = first.batches[6:], first.batches[:6]
        first.train(restores=True)
        assert other.train(10, restores=True) == 6
        first.batches = coming
        loader = first.loader(0)
        with pytest.raises(UsageError, match=r"call restore\(\) before the first loop"):
            next(iter(loader))
        loader.close()
        assert Trained(engine, tmp_path).train(restores=True) == 9, "that of the other is as it was"

    in_ranks(2, body)


def test_a_journal_that_was_closed_goes_on_where_nobody_else_has_written(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> int:
        trained = Trained(engine, tmp_path)
        batches = trained.batches
        for begin, end in ((0, 6), (6, 9)):
            trained.batches = batches[begin:end]
            trained.train(end - begin + 1)
        return Trained(engine, tmp_path).train(10, restores=True)

    assert in_ranks(2, body) == [9, 9]


def test_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_folder, "_LOCK_S", 0.2)

    def body(engine: InProcessEngine) -> None:
        loader = Trained(engine, tmp_path / str(engine.rank)).loader(0)
        with pytest.raises(JournalError, match=r"rank 1 does not see what rank 0 has written to .* ranks share"):
            next(iter(loader))
        loader.close()

    in_ranks(2, body)


def test_a_rank_that_restores_while_another_iterates(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        loader = Trained(engine, tmp_path).loader(0)
        with pytest.raises(UsageError, match=r"rank 1 wants to .* rank 0 to restore: all ranks must do the same"):
            loader.restore() if engine.rank == 0 else next(iter(loader))
        loader.close()

    in_ranks(2, body)


def test_a_lock_is_given_back_though_a_forked_process_has_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_folder, "_LOCK_S", 0.0)
    first = Journal(tmp_path)
    layouts = [CachedEmbedding(20, 2).layout]
    first.open(0, 1, [0], layouts)
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it has threads: the child does nothing
        child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    os.close(reads)
    try:
        with pytest.raises(JournalError, match="is written by another process"):
            Journal(tmp_path).open(0, 1, [0], layouts)
        first.close()
        second = Journal(tmp_path)
        second.open(0, 1, [0], layouts)
        second.close()
    finally:
        os.close(writes)
        assert os.waitpid(child, 0)[1] == 0


def test_another_number_of_ranks(tmp_path: Path) -> None:
    in_ranks(2, lambda engine: Trained(engine, tmp_path).train(4))

    def body(engine: InProcessEngine) -> None:
        with pytest.raises(ConfigError, match=r"has the journal of .*'ranks': 2.*'ranks': 3"):
            Trained(engine, tmp_path).loader(0).restore()

    in_ranks(3, body)


def test_caches_of_their_own_sizes() -> None:
    def body(engine: InProcessEngine) -> list[int]:
        users, items = CachedEmbedding(20, 2, name="users"), CachedEmbedding(9, 3, name="items")
        batches = [(ids, ids % 9) for ids in batches_of(engine.rank, 12)]
        loader = Lookahead(
            batches, {0: users, 1: items}, cache_rows={"items": 8, "users": 12}, lookahead=2, engine=engine, debug=True
        )
        sizes = [cache.records.shape[0] for cache in loader.open()._caches]
        for first, second in loader:
            (users(first).sum() + items(second).sum()).backward()
        assert users.steps == items.steps == 12
        loader.close()
        return sizes

    for users, items in in_ranks(2, body):
        assert users - items == 4


def test_initial_values_that_are_no_tensor() -> None:
    with pytest.raises(ConfigError, match=r"initial values of embedding are list, not \(1, 2\)"):
        CachedEmbedding(20, 2, initial=lambda rows: [1])  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match=r"initial values of embedding are \(1, 3\), not \(1, 2\)"):
        CachedEmbedding(20, 2, initial=lambda rows: torch.zeros(rows.numel(), 3))
