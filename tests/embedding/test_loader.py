"""What a program sees of a Lookahead: order, ends, errors on all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress.embedding import SGD, Adam, CachedEmbedding, CachedEmbeddingBag, Lookahead
from hvd_compress.embedding.exchange import Exchanger
from hvd_compress.embedding.threads import Threads
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, UsageError
from tests.embedding.reference import SynchronousTable


def embedding(rows: int = 20, **settings: Any) -> CachedEmbedding:
    return CachedEmbedding(rows, 2, **{"optimizer": SGD(0.1)} | settings)


def loader_of(batches: Iterable[Any], module: CachedEmbedding, engine: InProcessEngine, **settings: Any) -> Lookahead:
    return Lookahead(
        batches, {lambda batch: batch: module}, engine=engine, **{"cache_rows": 20, "lookahead": 3} | settings
    )


def train(loader: Lookahead, module: CachedEmbedding, until: int | None = None) -> int:
    count = 0
    for ids in loader:
        module(ids).sum().backward()
        count += 1
        if count == until:
            break
    return count


def ids(*rows: int) -> torch.Tensor:
    return torch.tensor(rows)


def batches_of(rank: int, count: int) -> list[torch.Tensor]:
    return [ids((step * 3 + rank) % 20, step % 7, rank) for step in range(count)]


def table(modules: list[CachedEmbedding]) -> torch.Tensor:
    """All records, with the initial values of rows that no rank has used."""
    layout, world = modules[0].layout, len(modules)
    found = torch.empty(layout.rows, layout.record_width)
    for rank, module in enumerate(modules):
        assert module.shard is not None
        found[rank::world] = module.shard.read(torch.arange(module.shard.rows))
    return found


def expected(module: CachedEmbedding, steps: list[list[torch.Tensor]]) -> torch.Tensor:
    reference = SynchronousTable(module.layout)
    for batch in steps:
        reference.train(batch, lambda rows, ids, _: rows[ids].sum())
    return reference.records


def test_batches_come_in_order_and_as_they_were() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        given = [(str(step), ids(step)) for step in range(10)]
        loader = Lookahead(given, {1: module}, cache_rows=20, engine=engine)
        assert len(loader) == 10
        for step, batch in enumerate(loader):
            assert batch is given[step]
            module(batch[1])
        assert module.steps == 10

    run_ranks(2, body)


@pytest.mark.parametrize("lookahead", [1, 4, None])
def test_epochs_and_loops_that_are_left(lookahead: int | None) -> None:
    """What a loop that is left has trained stands in the tables, and the next one goes on from there."""

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding(optimizer=Adam(0.1))
        loader = loader_of(batches_of(engine.rank, 9), module, engine, lookahead=lookahead, debug=True)
        for until in (None, 4, 1, None):
            train(loader, module, until)
        loader.close()
        return module

    modules = run_ranks(3, body)
    each = [[batches_of(rank, 9)[step] for rank in range(3)] for step in range(9)]
    steps = each + each[:4] + each[:1] + each
    found, width = table(modules), 2
    reference = SynchronousTable(CachedEmbedding(20, 2, optimizer=Adam(0.1)).layout)
    for batch in steps:
        reference.train(batch, lambda rows, ids, _: rows[ids].sum())
    assert torch.equal(found[:, :width], reference.records[:, :width])
    assert [module.steps for module in modules] == [len(steps)] * 3


def test_the_debug_mode_checks_what_each_step_reads() -> None:
    """A row that some step has changed since: its gradients would be of another row."""

    def body(engine: InProcessEngine) -> None:
        module = embedding()
        batches = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([1, 5])]
        iterator = iter(loader_of(batches, module, engine, debug=True))
        module(next(iterator)).sum().backward()
        module.versions.used(torch.tensor([5]), 8)  # before the exchange of the third step says so, too
        module(next(iterator)).sum().backward()
        with pytest.raises(CommunicationError, match=r"step 2: row 5 of .* is as step -1 has left it, and step 8"):
            next(iterator)

    run_ranks(1, body)


def test_two_loaders_share_an_embedding() -> None:
    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding()
        first = loader_of(batches_of(engine.rank, 6), module, engine)
        second = loader_of(batches_of(engine.rank + 1, 4), module, engine, lookahead=1, cache_rows=3)
        train(first, module)
        train(second, module)
        return module

    modules = run_ranks(2, body)
    steps = [[batches_of(rank, 6)[step] for rank in range(2)] for step in range(6)]
    steps += [[batches_of(rank + 1, 4)[step] for rank in range(2)] for step in range(4)]
    assert torch.equal(table(modules), expected(embedding(), steps))


def test_an_evaluation_within_an_epoch_reads_the_latest_rows_and_changes_none() -> None:
    """By another Lookahead, whose iteration ends the one that was left."""

    def body(engine: InProcessEngine) -> tuple[CachedEmbedding, torch.Tensor]:
        module = embedding(optimizer=Adam(0.1))
        training = loader_of(batches_of(engine.rank, 9), module, engine, debug=True)
        train(training, module, 5)
        testing = loader_of([torch.arange(0, 10), torch.arange(10, 20)], module, engine, debug=True, trains=False)
        seen = torch.cat([module(rows) for rows in testing])
        assert not seen.requires_grad
        assert module.steps == 5
        train(training, module)
        training.close()
        testing.close()
        return module, seen

    found = run_ranks(2, body)
    each = [[batches_of(rank, 9)[step] for rank in range(2)] for step in range(9)]
    make = lambda: CachedEmbedding(20, 2, optimizer=Adam(0.1))  # noqa: E731
    for _, seen in found:
        assert torch.equal(seen, expected(make(), each[:5])[:, :2])
    assert torch.equal(table([module for module, _ in found])[:, :2], expected(make(), each[:5] + each)[:, :2])


def test_two_iterations_at_once() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        first, second = (loader_of(batches_of(0, 4), module, engine) for _ in range(2))
        with pytest.raises(UsageError, match="another iteration over the same embeddings has ended this one"):
            list(zip(first, second, strict=True))

    run_ranks(1, body)


def test_several_backward_passes() -> None:
    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding()
        loader = loader_of(batches_of(engine.rank, 5), module, engine, backward_passes=2)
        for rows in loader:
            module(rows[:1]).sum().backward()
            module(rows[1:]).sum().backward()
        return module

    steps = [[batches_of(rank, 5)[step] for rank in range(2)] for step in range(5)]
    assert torch.equal(table(run_ranks(2, body)), expected(embedding(), steps))


def test_one_backward_pass_more_than_announced() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        for rows in loader_of(batches_of(engine.rank, 3), module, engine):
            module(rows).sum().backward()
            module(rows).sum().backward()

    with pytest.raises(UsageError, match="had another backward pass behind the 1 that were announced"):
        run_ranks(2, body)


def test_a_batch_without_a_backward_pass() -> None:
    """Is a step with gradients of zero."""

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding()
        for step, rows in enumerate(loader_of(batches_of(engine.rank, 6), module, engine)):
            if step % 2:
                module(rows).sum().backward()
        return module

    steps = [[batches_of(rank, 6)[step] for rank in range(2)] for step in range(1, 6, 2)]
    assert torch.equal(table(run_ranks(2, body)), expected(embedding(), steps))


def test_other_tensors_of_the_same_ids() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        for rows in loader_of(batches_of(engine.rank, 3), module, engine):
            assert torch.equal(module(rows.clone()), module(rows))
            assert torch.equal(module(rows.flip(0).to(torch.int32)), module(rows).flip(0))
            assert torch.equal(module(rows[:, None]), module(rows)[:, None])
            rows[0] = rows[1]
            assert torch.equal(module(rows)[0], module(rows)[1])
            with pytest.raises(UsageError, match=r"id \d+ at \(0,\) of embedding is none of those"):
                module(ids(19))

    run_ranks(1, body)


def test_a_module_without_a_batch() -> None:
    with pytest.raises(UsageError, match="within the loop over a Lookahead"):
        embedding()(ids(1))


WRONG: list[tuple[Callable[[], CachedEmbedding], Any, str]] = [
    (embedding, ids(1, 20), r"rank 1, batch 4: id 20 at \(1,\) is none of table 0 of embedding, which has 20 rows"),
    (embedding, ids(-1), r"rank 1, batch 4: id -1 at \(0,\) is none of table 0"),
    (embedding, torch.tensor([1.0]), r"rank 1, batch 4: the ids of embedding are torch.float32"),
    (embedding, [1], r"rank 1, batch 4: the ids of embedding are list"),
]


@pytest.mark.parametrize(("make", "wrong", "words"), WRONG)
def test_wrong_ids_are_an_error_on_all_ranks(make: Callable[[], CachedEmbedding], wrong: Any, words: str) -> None:
    told: list[str] = []

    def body(engine: InProcessEngine) -> None:
        module = make()
        given: list[Any] = batches_of(engine.rank, 9)
        if engine.rank == 1:
            given[4] = wrong
        loader = loader_of(given, module, engine)
        with pytest.raises(ConfigError, match=words) as caught:
            train(loader, module)
        told.append(str(caught.value))
        with pytest.raises(UsageError, match="load a checkpoint"):
            train(loader, module)

    run_ranks(3, body)
    assert len(told) == 3


def test_ids_of_several_tables() -> None:
    several = CachedEmbedding([3, 4], 2)
    with pytest.raises(ConfigError, match=r"here: id 4 at \(0, 1\) is none of table 1"):
        several.flat_rows(torch.tensor([[2, 4]]), "here")
    with pytest.raises(ConfigError, match="the last dimension is not its 2 tables"):
        several.flat_rows(torch.tensor([1, 2, 3]), "here")
    bags = CachedEmbeddingBag([3, 4], 2)
    with pytest.raises(ConfigError, match="a tensor for each of its 2 tables"):
        bags.flat_rows(ids(1), "here")
    with pytest.raises(ConfigError, match=r"id 3 at \(0,\) is none of table 0"):
        bags.flat_rows([ids(3), ids(3)], "here")


def test_a_loader_that_fails_is_an_error_on_all_ranks() -> None:
    def body(engine: InProcessEngine) -> str:
        module = embedding()

        def given() -> Iterator[torch.Tensor]:
            yield from batches_of(engine.rank, 5)
            if engine.rank == 0:
                raise OSError("no such file")
            yield from batches_of(engine.rank, 5)

        with pytest.raises((OSError, ConfigError)) as caught:
            train(loader_of(given(), module, engine), module)
        return f"{type(caught.value).__name__}: {caught.value}"

    first, second = run_ranks(2, body)
    assert first == "OSError: no such file"
    assert second.startswith("ConfigError: rank 1, step")
    assert second.endswith("rank 0, batch 5: OSError: no such file")


def test_loaders_of_different_lengths() -> None:
    """Ranks train on what all have, and are told then."""

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding()
        with pytest.raises(
            UsageError, match="the loader of rank 1 has ended after 5 batches, and that of rank 0 goes on"
        ):
            train(loader_of(batches_of(engine.rank, 7 - 2 * engine.rank), module, engine), module)
        assert module.steps == 5
        assert not module.lost
        return module

    modules = run_ranks(2, body)
    steps = [[batches_of(rank, 7)[step] for rank in range(2)] for step in range(5)]
    assert torch.equal(table(modules), expected(embedding(), steps))


def test_a_loop_that_one_rank_leaves() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        loader = loader_of(batches_of(engine.rank, 20), module, engine)
        with pytest.raises(UsageError, match="rank 1 has left the loop over its batches, and rank 0 has not"):  # noqa: PT012
            train(loader, module, 3 if engine.rank else None)
            loader.collect()

    run_ranks(2, body)


def test_no_batches_at_all() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        assert train(loader_of([], module, engine), module) == 0
        assert train(loader_of([], module, engine, lookahead=None), module) == 0

    run_ranks(2, body)


def test_a_cache_that_does_not_hold_a_batch() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        given = [ids(1), ids(2), ids(*range(2 + 3 * engine.rank))]
        with pytest.raises(
            ConfigError, match=r"step 2: the batch of rank 1 has 5 distinct rows of embedding.* cache 4"
        ):
            train(loader_of(given, module, engine, cache_rows=4), module)

    run_ranks(2, body)


def test_ranks_that_ask_for_different_things() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding(20 + engine.rank)
        with pytest.raises(ConfigError, match=r"embedding is \[\[20\].* on rank 0 and \[\[21\].* on rank 1"):
            train(loader_of([], module, engine), module)

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache_rows": 0}, "cache_rows = 0"),
        ({"cache_rows": {"other": 3}}, r"cache_rows is for \['other'\], and the embeddings are \['embedding'\]"),
        ({"lookahead": 0}, "lookahead = 0"),
        ({"lookahead": 10_001}, "lookahead = 10001 .* to 10,000"),
        ({"backward_passes": True}, "backward_passes = True"),
        ({"journal": "folder"}, "journal = 'folder' of a Lookahead is no Journal"),
        ({"servers": 2}, "servers = 2 of a Lookahead is no Servers"),
    ],
)
def test_settings_without_a_meaning(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Lookahead([], {0: embedding()}, **{"cache_rows": 1} | settings)


def test_embeddings_without_a_meaning() -> None:
    with pytest.raises(ConfigError, match="needs embeddings"):
        Lookahead([], {}, cache_rows=1)
    with pytest.raises(ConfigError, match="different names"):
        Lookahead([], {0: embedding(), 1: embedding()}, cache_rows=1)
    for sizes, dim in (([], 2), ([0], 2), ([True], 2), ([3], 0), ([2**47], 1)):
        with pytest.raises(ConfigError, match="rows"):
            CachedEmbedding(sizes, dim)
    assert (
        CachedEmbedding(np.array([3, 4]), 2).layout.sizes == CachedEmbedding([np.int64(3), 4], 2).layout.sizes == (3, 4)
    )
    with pytest.raises(ConfigError, match="the optimizer of embedding is <class"):
        CachedEmbedding(3, 2, optimizer=SGD)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'a/b' of an embedding"):
        CachedEmbedding(3, 2, name="a/b")
    with pytest.raises(ConfigError, match="unknown mode of embedding 'max'; known are sum, mean"):
        CachedEmbeddingBag(3, 2, mode="max")


def test_a_closed_loader() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        loader = loader_of(batches_of(0, 2), module, engine)
        train(loader, module)
        loader.close()
        with pytest.raises(UsageError, match="closed"):
            train(loader, module)

    run_ranks(1, body)


@pytest.mark.parametrize(("first", "second"), [(7, 8), (6, 7), (3, 8), (8, None)])
def test_a_loop_that_ranks_leave_behind_different_batches(first: int, second: int | None) -> None:
    """Also behind the last batch that was told."""

    def body(engine: InProcessEngine) -> None:
        module = embedding()
        loader = loader_of(batches_of(engine.rank, 9), module, engine)
        with pytest.raises(UsageError, match="has left the loop over its batches"):  # noqa: PT012
            train(loader, module, second if engine.rank else first)
            loader.collect()

    run_ranks(2, body)


def test_embeddings_that_were_trained_different_steps() -> None:
    """Each has the correction of bias of its own steps."""

    def body(engine: InProcessEngine) -> list[CachedEmbedding]:
        both = [embedding(optimizer=Adam(0.1), name=name) for name in ("first", "second")]
        for modules, count in ((both[1:], 4), (both, 5)):
            loader = Lookahead(
                batches_of(engine.rank, count),
                {lambda ids, at=at: ids: module for at, module in enumerate(modules)},
                cache_rows=20,
                lookahead=2,
                engine=engine,
                debug=True,
            )
            for rows in loader:
                sum(module(rows).sum() for module in modules).backward()
            loader.close()
        return both

    ranks = run_ranks(2, body)
    steps = {count: [[batches_of(rank, count)[step] for rank in range(2)] for step in range(count)] for count in (4, 5)}
    for at, trained in enumerate((steps[5], steps[4] + steps[5])):
        modules = [each[at] for each in ranks]
        assert [module.steps for module in modules] == [len(trained)] * 2
        records = expected(CachedEmbedding(20, 2, optimizer=Adam(0.1)), trained)
        assert torch.equal(table(modules)[:, :2], records[:, :2])


def test_a_lookahead_as_a_context() -> None:
    """It is closed behind the block, but not behind an error, which other ranks need not have."""

    def body(engine: InProcessEngine) -> None:
        module = embedding()
        with loader_of(batches_of(engine.rank, 3), module, engine) as loader:
            train(loader, module)
        with pytest.raises(UsageError, match="closed"):
            train(loader, module)
        with pytest.raises(ZeroDivisionError), loader_of(batches_of(engine.rank, 3), module, engine) as loader:
            raise ZeroDivisionError
        train(loader, module)
        loader.close()

    run_ranks(2, body)


def test_lookaheads_that_differ_in_debug() -> None:
    def body(engine: InProcessEngine) -> None:
        module = embedding()
        with loader_of(batches_of(0, 3), module, engine) as loader:
            train(loader, module)
        with pytest.raises(ConfigError, match="were made with debug=False"):
            train(loader_of(batches_of(0, 3), module, engine, debug=True), module)

    run_ranks(1, body)


def test_a_rank_whose_thread_is_late_takes_part_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a step all tell each other that no more batches come: close() leaves nobody alone in the last time."""
    begun, gather, submit = [0, 0], Exchanger.gather, Threads.submit

    def counted(self: Exchanger, *arguments: Any, **named: Any) -> Any:
        begun[self.rank] += 1
        return gather(self, *arguments, **named)

    def late(self: Threads, name: str, call: Callable[[], Any]) -> Any:
        if name == "control" and self.engines.control.rank == 0:
            submit(self, name, lambda: time.sleep(0.02))
        return submit(self, name, call)

    monkeypatch.setattr(Exchanger, "gather", counted)
    monkeypatch.setattr(Threads, "submit", late)

    def run(engine: InProcessEngine) -> None:
        module = embedding()
        loader = loader_of(batches_of(engine.rank, 3), module, engine)
        assert train(loader, module) == 3
        loader.close()

    run_ranks(2, run)
    assert begun[0] == begun[1]
