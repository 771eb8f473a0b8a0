"""Sparse gradients, as rows or made dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    check_against_horovod,
    flat,
    maker,
)


class Words(nn.Module):
    """A table of which each batch touches some rows, and a layer on top."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(50, 7, sparse=sparse)
        self.top = nn.Linear(7, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(words).sum(0))


def words(step: int, rank: int | None = None) -> torch.Tensor:
    """Rows that a rank, by default this one, touches: some twice, other ranks' some of them."""
    rank = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(0, 50, (rank + 5,), generator=generator)


def train_words(make: Make, sparse: bool, optimizer_type: Any = torch.optim.SGD, **options: Any) -> list[torch.Tensor]:
    model = Words(sparse)
    optimizer = make(optimizer_type(model.parameters(), lr=0.05), model, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(words(step)).square().sum().backward()
        optimizer.step()
        assert model.table.weight.grad.is_sparse == sparse
    return list(model.parameters())


def test_sparse_gradients() -> None:
    check_against_horovod(lambda make: train_words(make, sparse=True))


def test_sparse_gradients_as_dense(exact: Request) -> None:
    """They come back sparse. The reference is a table with dense gradients: Horovod's own way fails with this torch."""
    trained = flat(train_words(maker(exact), sparse=True, sparse_as_dense=True))
    expected = flat(train_words(maker(hvd.Compression.none), sparse=False))
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks(trained)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_with_compression(sparse_as_dense: bool, engine: str) -> None:
    request = hvd.Compression.topk(0.05).by(engine=engine)
    assert_same_on_all_ranks(flat(train_words(maker(request), sparse=True, sparse_as_dense=sparse_as_dense)))
