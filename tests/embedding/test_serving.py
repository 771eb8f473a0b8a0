"""Servers that own rows and do not train: the same bits as where trainers own them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.embedding import Adagrad, CachedEmbedding, Journal, Lookahead, Servers, serve
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from tests.embedding.test_journal import killed
from tests.embedding.test_loader import batches_of, table

STEPS = 23


def made(**settings: Any) -> CachedEmbedding:
    return CachedEmbedding(20, 2, optimizer=Adagrad(0.05), **settings)


def train(loader: Lookahead, module: CachedEmbedding, until: int | None = None) -> None:
    for ids in loader:
        (module(ids) ** 2).sum().backward()
        if module.steps + 1 == until:
            break


def job(
    trainers: int,
    servers: int,
    body: Callable[[CachedEmbedding, InProcessEngine, dict[str, Any]], Any],
    where: Path | None = None,
) -> list[tuple[CachedEmbedding, Any]]:
    """Run a program of trainers, with servers or without; return each rank's embedding, and what the program does."""

    def rank(engine: InProcessEngine) -> tuple[CachedEmbedding, Any]:
        module = made()
        journal = None if where is None else Journal(where, every=5)
        settings = {"cache_rows": 20, "lookahead": 3, "debug": True, "journal": journal}
        if not servers:
            return module, body(module, engine, settings | {"engine": engine})
        group = Servers(servers, engine=engine)
        if group.here:
            return module, serve(group, [module], journal)
        with group:
            return module, body(module, engine, settings | {"servers": group})

    return run_ranks(trainers + servers, rank)


def records(found: list[tuple[CachedEmbedding, Any]]) -> torch.Tensor:
    modules = [module for module, _ in found]
    records = table([each for each in modules if each.shard is not None and each.shard.rows])
    return torch.cat([records[:, :2], records[:, 3:]], dim=1)


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 1), (3, 2), (1, 3)])
@pytest.mark.parametrize("lookahead", [1, 4, None])
def test_the_same_bits(trainers: int, servers: int, lookahead: int | None) -> None:
    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> None:
        loader = Lookahead(
            batches_of(engine.rank, STEPS), {lambda ids: ids: module}, **settings | {"lookahead": lookahead}
        )
        train(loader, module)
        loader.close()

    assert torch.equal(records(job(trainers, servers, body)), records(job(trainers, 0, body)))


def test_epochs_that_are_left_and_evaluations() -> None:
    """Also within an epoch, by another Lookahead, which reads the latest rows."""

    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> list[torch.Tensor]:
        batches = batches_of(engine.rank, STEPS)
        loader = Lookahead(batches, {lambda ids: ids: module}, **settings)
        reader = Lookahead(batches[:4], {lambda ids: ids: module}, **settings | {"trains": False, "lookahead": None})
        read = []
        for until in (9, 9 + STEPS - 1, None):
            train(loader, module, until)
            read += [module(ids).detach() for ids in reader]
        reader.close()
        train(loader, module, module.steps + 1)
        loader.close()
        return read

    served, own = job(2, 2, body), job(2, 0, body)
    assert torch.equal(records(served), records(own))
    for rank in range(2):
        for first, second in zip(served[rank][1], own[rank][1], strict=True):
            assert torch.equal(first, second)


def test_an_epoch_that_is_left_behind_its_last_batches() -> None:
    """No batch is told any more, and servers go on as long as trainers do."""

    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> None:
        loader = Lookahead(batches_of(engine.rank, 6), {lambda ids: ids: module}, **settings)
        for until in (5, 5 + 6, 5 + 6 + 4):
            train(loader, module, until)
        loader.close()

    assert torch.equal(records(job(2, 1, body)), records(job(2, 0, body)))


@pytest.mark.parametrize("seed", range(4))
def test_any_moment(tmp_path: Path, seed: int) -> None:
    """Kills of trainers and servers, as in test_journal.py."""
    draw = random.Random(seed)

    def body(until: int) -> Callable[[CachedEmbedding, InProcessEngine, dict[str, Any]], int]:
        def train_on(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> int:
            loader = Lookahead((), {lambda ids: ids: module}, **settings)
            first = loader.restore()
            loader._loader = batches_of(engine.rank, STEPS)[first:]
            train(loader, module, until)
            loader.close()
            return first

        return train_on

    moments = sorted(draw.sample(range(2, STEPS), 3))
    for moment in moments:
        job(2, 2, body(moment), tmp_path)
        killed(tmp_path, draw, 4)
    found = job(2, 2, body(STEPS), tmp_path)
    assert found[0][1] >= moments[-1] - 4
    assert torch.equal(records(found), records(job(2, 0, lambda *given: body(STEPS)(*given), tmp_path / "whole")))


def test_errors(tmp_path: Path) -> None:
    def wrong_number(engine: InProcessEngine) -> None:
        with pytest.raises(ConfigError, match="2 servers among 2 ranks"):
            Servers(2, engine=engine)
        with pytest.raises(ConfigError, match="the number of servers is 1 on rank 0 and 0 on rank 1"):
            Servers(1 - engine.rank, engine=engine)

    run_ranks(2, wrong_number)

    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> None:
        loader = Lookahead(batches_of(engine.rank, 3), {lambda ids: ids: module}, **settings)
        with pytest.raises(UsageError, match="rows are with servers"):
            loader.state_dict()
        with pytest.raises(UsageError, match="rows are with servers"):
            loader.load_state_dict({})
        train(loader, module)
        loader.close()

    job(2, 1, body)


def test_trainers_that_do_different_things() -> None:
    def rank(engine: InProcessEngine) -> None:
        group, module = Servers(1, engine=engine), made()
        if group.here:
            return serve(group, [module])
        loader = Lookahead(batches_of(engine.rank, 3), {lambda ids: ids: module}, cache_rows=20, servers=group)
        loader.open()
        return loader.close() if engine.rank == 1 else train(loader, module)

    with pytest.raises(UsageError, match="rank 1 wants to close Lookahead 0, and rank 0 wants to iterate over"):
        run_ranks(3, rank)


def test_an_evaluation_that_is_opened_later() -> None:
    """Servers are there until trainers close them, and close what was not."""

    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> list[torch.Tensor]:
        train(training := Lookahead(batches_of(engine.rank, STEPS), {lambda ids: ids: module}, **settings), module)
        training.close()
        never = Lookahead(batches_of(engine.rank, 2), {lambda ids: ids: module}, **settings)
        never.close()
        reader = Lookahead(batches_of(engine.rank, 4), {lambda ids: ids: module}, **settings | {"trains": False})
        found = [module(ids).detach() for ids in reader]
        if "servers" not in settings:
            reader.close()
            return found
        settings["servers"].close()
        with pytest.raises(UsageError, match="this Lookahead is closed"):
            list(reader)
        with pytest.raises(UsageError, match="these servers are closed"):
            Lookahead((), {0: module}, **settings).open()
        return found

    served, own = job(2, 1, body), job(2, 0, body)
    for rank in range(2):
        for first, second in zip(served[rank][1], own[rank][1], strict=True):
            assert torch.equal(first, second)


def test_a_lookahead_without_the_servers_that_have_the_rows() -> None:
    """It would wait for servers, which wait for their trainers."""

    def rank(engine: InProcessEngine) -> None:
        group, module = Servers(1, engine=engine), made()
        if group.here:
            return serve(group, [module])
        batches, embeddings = batches_of(engine.rank, 3), {lambda ids: ids: module}
        train(training := Lookahead(batches, embeddings, cache_rows=20, servers=group), module)
        training.collect()
        reader = Lookahead(batches, embeddings, cache_rows=20, engine=engine, trains=False)
        sent = engine.sent_messages
        with pytest.raises(UsageError, match=r"the rows of embedding are with servers: pass the same servers= to each"):
            reader.open()
        assert engine.sent_messages == sent
        return group.close()

    run_ranks(3, rank)


def test_a_server_that_trains() -> None:
    def rank(engine: InProcessEngine) -> None:
        group, module = Servers(1, engine=engine), made()
        if not group.here:
            with pytest.raises(UsageError, match="this rank trains"):
                serve(group, [module])
            return
        with pytest.raises(UsageError, match="this rank is a server, and has no batches"):
            list(Lookahead([], {0: module}, cache_rows=20, servers=group))
        with pytest.raises(UsageError, match="a server is closed by the trainers"):
            group.close()

    run_ranks(2, rank)


@pytest.mark.parametrize("lacks", ["an embedding", "the journal"])
def test_what_a_server_lacks(tmp_path: Path, lacks: str) -> None:
    words = {
        "an embedding": r"trainers use the embedding 'embedding', and serve\(\) was given \['other'\]",
        "the journal": "trainers have a journal: pass one in the same folder",
    }

    def rank(engine: InProcessEngine) -> None:
        group = Servers(1, engine=engine)
        if group.here:
            module, journal = (made(name="other"), Journal(tmp_path)) if lacks == "an embedding" else (made(), None)
            with pytest.raises(ConfigError, match=words[lacks]):
                serve(group, [module], journal)
            return
        loader = Lookahead([], {0: made()}, cache_rows=20, servers=group, journal=Journal(tmp_path))
        with pytest.raises(ConfigError, match=words[lacks]):
            list(loader)

    run_ranks(2, rank)
