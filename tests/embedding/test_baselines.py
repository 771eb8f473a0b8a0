"""What the cache is compared with trains the same rows."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.embedding import Adagrad, CachedEmbedding
from hvd_compress.embedding.baselines import Baseline, ReplicatedTable, Resident, RowSharded
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from tests.embedding.reference import SynchronousTable
from tests.embedding.test_loader import batches_of, table


def embedding() -> CachedEmbedding:
    return CachedEmbedding(20, 2, optimizer=Adagrad(0.1))


def trained(kind: type[Baseline], world: int) -> list[CachedEmbedding]:
    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = embedding()
        for ids in kind(batches_of(engine.rank, 8), {lambda batch: batch: module}, engine):
            (module(ids) ** 2).sum().backward()
        assert module.steps == 8
        return module

    return run_ranks(world, body)


def expected(ranks: list[int]) -> torch.Tensor:
    reference = SynchronousTable(embedding().layout)
    for step in range(8):
        reference.train([batches_of(rank, 8)[step] for rank in ranks], lambda rows, ids, _: (rows[ids] ** 2).sum())
    return reference.records


@pytest.mark.parametrize("world", [1, 3])
def test_a_sharded_table(world: int) -> None:
    assert torch.equal(table(trained(RowSharded, world)), expected(list(range(world))))


@pytest.mark.parametrize("world", [1, 3])
def test_a_replicated_table(world: int) -> None:
    for module in trained(ReplicatedTable, world):
        assert torch.equal(table([module]), expected(list(range(world))))


def test_resident_rows() -> None:
    """Each rank trains on its own gradients, as its part of the mean."""
    for rank, module in enumerate(trained(Resident, 2)):
        reference, none = SynchronousTable(embedding().layout), torch.empty(0, dtype=torch.int64)
        for ids in batches_of(rank, 8):
            reference.train([ids, none], lambda rows, ids, _: (rows[ids] ** 2).sum())
        assert torch.equal(table([module]), reference.records)
