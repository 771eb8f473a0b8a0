"""Rows that are not trained, and features that share a table, as with torch's modules; and what there is none of."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from hvd_compress.embedding import SGD, CachedEmbedding, CachedEmbeddingBag, Lookahead, RowOptimizer
from hvd_compress.embedding.baselines import RowSharded
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from tests.embedding.reference import SynchronousTable
from tests.embedding.test_exact import OPTIMIZERS, check, loss_of, trained
from tests.embedding.test_loader import table

ROWS, DIM, PADDING = 12, 3, 4


def drawn(world: int, steps: int = 12) -> list[list[torch.Tensor]]:
    """Ids, of which a third is the padding; in one step one rank has nothing else."""
    generator = torch.Generator().manual_seed(world)
    batches = [[torch.randint(0, ROWS, (9,), generator=generator) for _ in range(world)] for _ in range(steps)]
    for batch in batches:
        for ids in batch:
            ids[torch.randint(0, 9, (3,), generator=generator)] = PADDING
    batches[5][0].fill_(PADDING)
    return batches


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_padding_row_is_that_of_torch(world: int, make: Callable[[], RowOptimizer]) -> None:
    check(
        world,
        drawn(world),
        lambda: CachedEmbedding(ROWS, DIM, optimizer=make(), padding_idx=PADDING - ROWS),
        ROWS,
        3,
        lambda module, ids, rank: loss_of(module(ids), rank),
        lambda rows, ids, rank: loss_of(functional.embedding(ids, rows, padding_idx=PADDING), rank),
    )


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_pass_over_it(mode: str) -> None:
    starts = torch.tensor([0, 3, 6])
    check(
        2,
        drawn(2),
        lambda: CachedEmbeddingBag(ROWS, DIM, optimizer=SGD(0.1), mode=mode, padding_idx=PADDING),
        ROWS,
        3,
        lambda module, ids, rank: loss_of(module(ids, starts), rank),
        lambda rows, ids, rank: loss_of(
            functional.embedding_bag(ids, rows, starts, mode=mode, padding_idx=PADDING), rank
        ),
    )


@pytest.mark.parametrize("precision", ["exact", "bf16", "int8"])
def test_it_is_zero_and_stays_so(precision: str) -> None:
    def make() -> CachedEmbedding:
        return CachedEmbedding(ROWS, DIM, optimizer=SGD(0.1), padding_idx=PADDING)

    batches = drawn(2)
    records, used = trained(
        2, batches, make, ROWS, 2, lambda module, ids, rank: loss_of(module(ids), rank), sync_precision=precision
    )
    assert used[PADDING]
    assert not records[PADDING, :DIM].any()
    assert records[used].any(1).sum() > 1


def test_one_that_is_given_stays_as_it_is() -> None:
    def make() -> CachedEmbedding:
        return CachedEmbedding(
            ROWS, DIM, optimizer=SGD(0.1), padding_idx=PADDING, initial=lambda rows: rows[:, None] + torch.ones(1, DIM)
        )

    records, _ = trained(2, drawn(2), make, ROWS, 2, lambda module, ids, rank: loss_of(module(ids), rank))
    assert records[PADDING, :DIM].tolist() == [PADDING + 1.0] * DIM
    assert not torch.equal(records[PADDING + 1, :DIM], torch.full((DIM,), PADDING + 2.0))


def in_steps(loader: Any, module: CachedEmbedding, loss: Callable[[Any], torch.Tensor]) -> CachedEmbedding:
    for batch in loader:
        loss(batch).backward()
    return module


def test_each_table_has_its_own() -> None:
    """Two tables, of which one has a padding; also with bags, where all have the same id."""
    batches = [[torch.stack([ids % 5, ids % 7], -1) for ids in step] for step in drawn(2)]

    def body(engine: InProcessEngine) -> tuple[CachedEmbedding, CachedEmbedding]:
        mine = [step[engine.rank] for step in batches]
        rows = CachedEmbedding([5, 7], DIM, optimizer=SGD(0.1), padding_idx=[4, None])
        bags = CachedEmbeddingBag([5, 7], DIM, optimizer=SGD(0.1), padding_idx=1, name="bags")
        keys: dict[Any, CachedEmbedding] = {lambda batch: batch: rows, lambda batch: list(batch.T): bags}
        with Lookahead(mine, keys, cache_rows=12, lookahead=2, engine=engine) as loader:
            for ids in loader:
                sums = bags(list(ids.T), [torch.tensor([0, 4])] * 2)
                (loss_of(rows(ids), engine.rank) + sums.square().sum()).backward()
        return rows, bags

    found = run_ranks(2, body)
    rows, bags = (table([each[at] for each in found])[:, :DIM] for at in (0, 1))
    assert not rows[4].any()
    assert rows[:4].any(1).all()
    assert rows[5:].any(1).all()
    assert [row for row in range(12) if not bags[row].any()] == [1, 6]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_two_tables_pass_over_the_row_of_each(mode: str) -> None:
    """Rows of a value of their own, int32 ids, an offset behind the last, and a bag of nothing else."""
    starts, given = torch.tensor([0, 3, 5, 9]), torch.arange(36.0).reshape(12, 3) + 1
    found: list[torch.Tensor] = []

    def body(engine: InProcessEngine) -> None:
        bags = CachedEmbeddingBag(
            [5, 7], DIM, mode=mode, padding_idx=[4, 2], include_last_offset=True, initial=lambda rows: given[rows]
        )
        ids = [torch.tensor([4, 1, 2, 4, 4, 0, 4, 3, 1]).int(), torch.tensor([2, 6, 0, 2, 2, 5, 1, 2, 4]).int()]
        with Lookahead([ids], {lambda batch: batch: bags}, cache_rows=12, engine=engine, trains=False) as loader:
            for batch in loader:
                found.append(bags(batch, [starts] * 2))
        tables = [torch.nn.EmbeddingBag.from_pretrained(given[:5], mode=mode, padding_idx=4, include_last_offset=True)]
        tables += [torch.nn.EmbeddingBag.from_pretrained(given[5:], mode=mode, padding_idx=2, include_last_offset=True)]
        expected = torch.stack([each(of, starts) for each, of in zip(tables, ids, strict=True)], dim=1)
        assert torch.equal(found[-1], expected)

    run_ranks(1, body)


def features(world: int) -> list[list[dict[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(world)
    drawn_ids = torch.randint(0, ROWS, (10, world, 2, 4), generator=generator)
    return [[{"item": item, "history": history} for item, history in step] for step in drawn_ids]


@pytest.mark.parametrize("kind", ["lookahead", "sharded"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_two_features_share_a_table(world: int, kind: str) -> None:
    batches = features(world)

    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = CachedEmbedding(ROWS, DIM, optimizer=SGD(0.1))
        keys: dict[Any, CachedEmbedding] = {"item": module, lambda batch: batch["history"]: module}
        mine = [step[engine.rank] for step in batches]

        def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return loss_of(module(batch["item"]) * module(batch["history"]), engine.rank)

        if kind == "sharded":
            return in_steps(RowSharded(mine, keys, engine), module, loss)
        with Lookahead(mine, keys, cache_rows=ROWS, lookahead=3, engine=engine) as loader:
            assert [each.layout.name for each in loader.modules] == ["embedding"]
            return in_steps(loader, module, loss)

    found = table(run_ranks(world, body))
    reference = SynchronousTable(CachedEmbedding(ROWS, DIM, optimizer=SGD(0.1)).layout)
    for step in batches:
        both = [torch.stack([batch["item"], batch["history"]]) for batch in step]
        reference.train(both, lambda rows, ids, rank: loss_of(rows[ids[0]] * rows[ids[1]], rank))
    assert torch.allclose(found, reference.records, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"padding_idx": 4.5}, "padding_idx 4.5 is none"),
        ({"padding_idx": 12}, "padding_idx 12 is none of table 0 of embedding, which has 12 rows"),
        ({"padding_idx": True}, "padding_idx True is none"),
        ({"padding_idx": [1, 2]}, "padding_idx of embedding is for 2 tables, and there are 1"),
        ({"max_norm": 1.0}, "there is no max_norm of embedding: it changes rows in the forward pass"),
        ({"scale_grad_by_freq": True, "name": "items"}, "there is no scale_grad_by_freq of items: how often"),
        ({"sparse": True}, "gradients of rows always travel by rows"),
    ],
)
@pytest.mark.parametrize("kind", [CachedEmbedding, CachedEmbeddingBag])
def test_what_there_is_none_of(kind: type[CachedEmbedding], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(ROWS, DIM, **settings)


def test_torchs_own_defaults_ask_for_nothing() -> None:
    made = CachedEmbedding(ROWS, DIM, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False)
    assert made.layout.described(0)[-1] == []


def test_numbers_of_numpy_are_numbers() -> None:
    made = CachedEmbedding(np.array([5, 7]), DIM, padding_idx=np.array([1, -1]))
    assert json.dumps(made.layout.described(0)[-1]) == "[1, 11]"


def test_ranks_that_leave_out_different_rows_are_refused() -> None:
    def body(engine: InProcessEngine) -> None:
        module = CachedEmbedding(ROWS, DIM, padding_idx=engine.rank)
        with pytest.raises(ConfigError, match="all ranks must ask for the same: embedding embedding is"):
            next(iter(Lookahead([torch.tensor([1])], {lambda batch: batch: module}, cache_rows=4, engine=engine)))

    run_ranks(2, body)


def test_an_unknown_argument_is_pythons_error() -> None:
    with pytest.raises(TypeError, match="no argument 'paddign'"):
        CachedEmbedding(ROWS, DIM, paddign=1)


def test_a_copy_is_another_table_until_there_are_rows() -> None:
    """Then it reads and trains the same: tables are not part of a model."""

    def body(engine: InProcessEngine) -> None:
        model = torch.nn.Sequential(CachedEmbedding(ROWS, DIM, padding_idx=1), torch.nn.Linear(DIM, 1))
        before = copy.deepcopy(model)
        assert before[0] is not model[0]
        assert before[0].layout.sizes == (ROWS,)
        loader = Lookahead([torch.tensor([1, 2])] * 2, {lambda batch: batch: model[0]}, cache_rows=4, engine=engine)
        with loader:
            for ids in loader:
                averaged = torch.optim.swa_utils.AveragedModel(model)
                assert averaged.module[0] is model[0]
                assert averaged.module[1] is not model[1]
                assert torch.equal(averaged(ids), model(ids))
                model(ids).sum().backward()
                with pytest.raises(UsageError, match="has no rows"):
                    before(ids)

    run_ranks(2, body)
