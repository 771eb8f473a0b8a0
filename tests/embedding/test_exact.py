"""Training behind the cache gives the bits of a synchronous table, whatever the ranks, the lookahead and the cache."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hvd_compress.embedding import (
    SGD,
    Adagrad,
    Adam,
    CachedEmbedding,
    CachedEmbeddingBag,
    Lookahead,
    RowOptimizer,
    RowwiseAdagrad,
    Rules,
    Servers,
    serve,
)
from hvd_compress.embedding.cache import Versions
from hvd_compress.embedding.exchange import Exchanger
from hvd_compress.embedding.layout import Layout
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError
from tests.embedding.reference import SynchronousTable
from tests.embedding.test_loader import table

OPTIMIZERS: list[Callable[[], RowOptimizer]] = [
    lambda: SGD(0.1),
    lambda: Adagrad(0.1, initial=0.1),
    lambda: RowwiseAdagrad(0.1),
    lambda: Adam(0.01),
]


def zipf(rows: int, alpha: float, count: int, generator: torch.Generator) -> torch.Tensor:
    weights = torch.arange(1, rows + 1, dtype=torch.float64) ** -alpha
    return torch.multinomial(weights, count, replacement=True, generator=generator)


def loss_of(values: torch.Tensor, rank: int) -> torch.Tensor:
    """Of what an embedding returned: gradients depend on rows, ranks and places."""
    places = torch.arange(values.numel(), dtype=torch.float32).view(values.shape)
    return (torch.sin(places + rank) * values).sum() + (values * values).sum()


def trained(
    world: int,
    batches: list[list[Any]],
    make: Callable[[], CachedEmbedding],
    cache_rows: int,
    lookahead: int | None,
    loss: Callable[[CachedEmbedding, Any, int], torch.Tensor],
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all records and which rows were used. `batches`: by step, by rank."""

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = make()
        loader = Lookahead(
            [batch[engine.rank] for batch in batches],
            {lambda batch: batch: module},
            cache_rows=cache_rows,
            lookahead=lookahead,
            engine=engine,
            debug=True,
            **settings,
        )
        for ids in loader:
            value = loss(module, ids, engine.rank)
            if value.requires_grad:
                value.backward()
        loader.close()
        return module

    modules = run_ranks(world, body)
    layout = modules[0].layout
    records, used = torch.zeros(layout.rows, layout.record_width), torch.zeros(layout.rows, dtype=torch.bool)
    for rank, module in enumerate(modules):
        assert module.shard is not None
        records[rank::world], used[rank::world] = module.shard.records, module.shard.used
    return records, used


def check(
    world: int,
    batches: list[list[torch.Tensor]],
    make: Callable[[], CachedEmbedding],
    cache_rows: int,
    lookahead: int | None,
    loss: Callable[[CachedEmbedding, torch.Tensor, int], torch.Tensor],
    expected: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    **settings: Any,
) -> None:
    records, used = trained(world, batches, make, cache_rows, lookahead, loss, **settings)
    table = SynchronousTable(make().layout)
    for batch in batches:
        table.train(batch, expected)
    width = table.layout.dim
    assert torch.equal(records[used][:, :width], table.records[used][:, :width])
    assert torch.equal(records[used][:, width + 1 :], table.records[used][:, width:])  # without the debug mode's step
    assert set(used.nonzero().flatten().tolist()) == {
        row for b in batches for ids in b for row in ids.flatten().tolist()
    }


def most_rows(batches: list[list[torch.Tensor]]) -> int:
    return max(1, max(len(set(ids.flatten().tolist())) for batch in batches for ids in batch))


@settings(max_examples=60, deadline=None)
@given(
    world=st.integers(1, 4),
    lookahead=st.integers(1, 12) | st.none(),
    spare=st.integers(0, 30),
    alpha=st.sampled_from([0.0, 1.0, 2.0, 5.0]),
    optimizer=st.sampled_from(OPTIMIZERS),
    rules=st.sampled_from([Rules(), Rules(delayed=False), Rules(replicated=True)]),
    seed=st.integers(0, 2**31),
)
def test_any_training(
    world: int,
    lookahead: int | None,
    spare: int,
    alpha: float,
    optimizer: Callable[[], RowOptimizer],
    rules: Rules,
    seed: int,
) -> None:
    """With duplicates in a batch, empty batches, rows that all ranks use and that one uses."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 12, (20, world), generator=generator)
    batches = [
        [zipf(40, alpha, int(size), generator) if size else torch.empty(0, dtype=torch.int64) for size in step]
        for step in sizes
    ]
    needed = most_rows([[torch.cat(batch)] for batch in batches] if rules.replicated else batches)
    check(
        world,
        batches,
        lambda: CachedEmbedding(40, 3, optimizer=optimizer(), seed=seed),
        needed + spare,
        lookahead,
        lambda module, ids, rank: loss_of(module(ids), rank),
        lambda table, ids, rank: loss_of(functional.embedding(ids, table), rank),
        rules=rules,
    )


@pytest.mark.level2
@pytest.mark.parametrize(("world", "lookahead"), [(1, 1), (1, 50), (2, 2), (2, 50), (3, 1), (3, 7), (4, 2), (4, 7)])
def test_300_steps(world: int, lookahead: int) -> None:
    generator = torch.Generator().manual_seed(world + 10 * lookahead)
    alphas = (1.0, 2.0, 3.0, 4.0, 5.0)
    batches = [[zipf(500, alphas[step % 5], 32, generator) for _ in range(world)] for step in range(300)]
    check(
        world,
        batches,
        lambda: CachedEmbedding(500, 8, optimizer=OPTIMIZERS[world - 1]()),
        most_rows(batches) + 20 * lookahead,
        lookahead,
        lambda module, ids, rank: loss_of(module(ids), rank),
        lambda table, ids, rank: loss_of(functional.embedding(ids, table), rank),
    )


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
def test_bags_some_of_them_empty(mode: str, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    batches = [[torch.randint(0, 50, (12,), generator=generator) for _ in range(3)] for _ in range(30)]
    offsets = torch.tensor([0, 0, 3, 9, 12])
    weights = torch.linspace(0.5, 2.0, 12) if weighted else None
    check(
        3,
        batches,
        lambda: CachedEmbeddingBag(50, 4, mode=mode, optimizer=Adagrad(0.1)),
        60,
        4,
        lambda module, ids, rank: loss_of(module(ids, offsets, weights), rank),
        lambda table, ids, rank: loss_of(
            functional.embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=weights), rank
        ),
    )


def test_several_tables_in_one() -> None:
    sizes, starts = [3, 40, 10], torch.tensor([0, 3, 43])
    generator = torch.Generator().manual_seed(2)

    def draw() -> torch.Tensor:
        return torch.stack([torch.randint(0, size, (6,), generator=generator) for size in sizes], dim=1)

    plain = [[draw() for _ in range(2)] for _ in range(20)]
    table = SynchronousTable(CachedEmbedding(sizes, 4, optimizer=SGD(0.1)).layout)
    for batch in plain:
        table.train(
            [ids + starts for ids in batch],
            lambda rows, ids, rank: loss_of(functional.embedding(ids, rows), rank),
        )
    each = torch.arange(6)
    records, used = trained(
        2,
        plain,
        lambda: CachedEmbedding(sizes, 4, optimizer=SGD(0.1)),
        20,
        3,
        lambda module, ids, rank: loss_of(module(ids), rank),
    )
    assert torch.equal(records[used][:, :4], table.records[used][:, :4])
    records, used = trained(
        2,
        [[list(ids.unbind(1)) for ids in batch] for batch in plain],
        lambda: CachedEmbeddingBag(sizes, 4, optimizer=SGD(0.1)),
        20,
        3,
        lambda module, ids, rank: loss_of(module(ids, [each] * 3), rank),
    )
    assert torch.equal(records[used][:, :4], table.records[used][:, :4])


@pytest.mark.parametrize("slow", ["gather", "critical", "later"])
@pytest.mark.parametrize("spare", [0, 6])
def test_threads_that_fall_behind(monkeypatch: pytest.MonkeyPatch, slow: str, spare: int) -> None:
    """With caches so small that rows are fetched again right behind their return."""
    plain, delays = getattr(Exchanger, slow), random.Random(1)

    def late(self: Exchanger, *arguments: Any, **settings: Any) -> Any:
        time.sleep(delays.choice([0.0, 0.002, 0.01]))
        return plain(self, *arguments, **settings)

    monkeypatch.setattr(Exchanger, slow, late)
    generator = torch.Generator().manual_seed(3)
    batches = [[zipf(12, 0.5, 6, generator) for _ in range(3)] for _ in range(60)]
    check(
        3,
        batches,
        lambda: CachedEmbedding(12, 2, optimizer=Adagrad(0.1)),
        most_rows(batches) + spare,
        4,
        lambda module, ids, rank: loss_of(module(ids), rank),
        lambda table, ids, rank: loss_of(functional.embedding(ids, table), rank),
    )


@pytest.mark.parametrize("servers", [0, 1])
def test_a_learning_rate_by_the_step(servers: int) -> None:
    """Each step's updates have that step's rate, whichever thread or server does them, and however late."""
    rates = [0.5, 0.0, 0.25, 0.125, 1.0, 0.0625]

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = CachedEmbedding(
            6, 1, optimizer=SGD(lambda step: rates[step]), initial=lambda rows: rows[:, None].float()
        )
        group = Servers(servers, engine=engine) if servers else None
        if group is not None and group.here:
            serve(group, [module])
            return module
        batches = [torch.tensor([0, step % 3, 3 + engine.rank]) for step in range(len(rates))]
        loader = Lookahead(
            batches, {lambda ids: ids: module}, cache_rows=6, lookahead=2, engine=engine, servers=group, debug=True
        )
        for ids in loader:
            module(ids).sum().backward()
        loader.close()
        if group is not None:
            group.close()
        return module

    modules = run_ranks(2 + servers, body)
    rows = table([module for module in modules if module.shard is not None and module.shard.rows])[:, 0]
    expected = torch.arange(6.0)
    for step, rate in enumerate(rates):
        expected[0] -= rate
        expected[step % 3] -= rate
        expected[3:5] -= rate / 2
    assert torch.equal(rows[:5], expected[:5])


def test_the_debug_mode_finds_a_stale_row() -> None:
    layout, versions = Layout("words", (9,), 2, SGD(0.1), debug=True), Versions()
    versions.used(torch.tensor([3, 4]), 1)
    versions.check(layout, torch.tensor([4, 5]), torch.tensor([2.0, 0.0]), 3)
    with pytest.raises(
        CommunicationError, match="step 3: row 3 of words is as step -1 has left it, and step 1 changed"
    ):
        versions.check(layout, torch.tensor([4, 3]), torch.tensor([2.0, 0.0]), 3)
