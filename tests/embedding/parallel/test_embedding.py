"""Embeddings behind a cache, between real processes and beside an optimizer that exchanges the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.embedding import CachedEmbedding, Lookahead, RowwiseAdagrad
from tests.embedding.reference import SynchronousTable
from tests.parallel.training import ENGINES

ROWS, DIM, STEPS = 60, 4, 25


def ids_of(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    weights = 1.0 / torch.arange(1, ROWS + 1)
    return [torch.multinomial(weights, 16, replacement=True, generator=generator) for _ in range(STEPS)]


def own_rows(table: torch.Tensor) -> torch.Tensor:
    return table[hvd.rank() :: hvd.size()]


def embedding() -> CachedEmbedding:
    return CachedEmbedding(ROWS, DIM, optimizer=RowwiseAdagrad(0.1), seed=4)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_the_bits_of_a_synchronous_table(engine: str) -> None:
    module, table = embedding(), SynchronousTable(embedding().layout)
    loader = Lookahead(ids_of(hvd.rank()), {lambda batch: batch: module}, cache_rows=40, engine=engine)
    for ids in loader:
        (module(ids) ** 2).sum().backward()
    loader.close()
    for step in range(STEPS):
        table.train([ids_of(rank)[step] for rank in range(hvd.size())], lambda rows, ids, _: (rows[ids] ** 2).sum())
    assert module.shard is not None
    assert torch.equal(module.shard.read(torch.arange(module.shard.rows)), own_rows(table.records))


def test_beside_compressed_gradients() -> None:
    """Two epochs, and the dense part stays equal on all ranks."""
    torch.manual_seed(1)
    module, top = embedding(), nn.Linear(DIM, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(top.parameters(), 0.05),
        named_parameters=top.named_parameters(),
        compression=hvd.Compression.int8(),
    )
    loader = Lookahead(ids_of(hvd.rank()), {lambda batch: batch: module}, cache_rows=40, lookahead=5)
    losses = []
    for _ in range(2):
        for ids in loader:
            optimizer.zero_grad()
            loss = (top(module(ids)).squeeze(1) - (ids % 3 - 1)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    loader.close()
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    weights = hvd.allgather_object([each.tolist() for each in top.parameters()])
    assert all(each == weights[0] for each in weights)
