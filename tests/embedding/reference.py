"""A synchronous table without a cache: what the library is compared with, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hvd_compress.embedding.layout import Layout

Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""From all rows of the table (rows, dim) or those of a batch, the places of ids in them, and the rank: a loss."""


class SynchronousTable:
    """All rows in one place. Each step adds up the gradients of all ranks in their order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.records = torch.zeros(layout.rows, layout.record_width)
        layout.initialise(self.records, torch.arange(layout.rows))
        self.step = 0

    def train(
        self, batches: Sequence[torch.Tensor], loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    ) -> None:
        """`batches`: ids of each rank, as rows of the table."""
        sums = torch.zeros(self.layout.rows, self.layout.dim)
        used: set[int] = set()
        for rank, ids in enumerate(batches):
            table = self.layout.row(self.records).clone().requires_grad_()
            value = loss(table, ids, rank)
            if value.requires_grad:
                value.backward()
            rows = torch.tensor(sorted(set(ids.flatten().tolist())), dtype=torch.int64)
            used.update(rows.tolist())
            if table.grad is not None:
                sums[rows] += table.grad[rows]
        rows = torch.tensor(sorted(used), dtype=torch.int64)
        records = self.records[rows]
        self.layout.update(records, sums[rows] / len(batches), self.step)
        self.records[rows] = records
        self.step += 1
