"""Batches that come: each rank tells all others which rows its next batch uses."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import PayloadError, UsageError


class Kind(IntEnum):
    """What a rank has to tell."""

    BATCH = 0
    END = 1
    """Its loader has no more batches."""
    LEFT = 2
    """Its program has left the loop over them."""
    SERVER = 3
    """It never has any."""


class Coming:
    """Gathers what all ranks tell. All methods that communicate are collective.

    Attributes:
        batches: how many have been gathered.
        closed: whether no more will come.
        failure: why ranks have not equally many batches, to be raised when they have trained on the last one of all.
    """

    def __init__(self, engine: Engine, embeddings: int, rows: int) -> None:
        """`rows`: of the largest embedding, by which all ranks know how wide an id is."""
        self._engine, self._embeddings = engine, embeddings
        self._dtype = torch.int32 if rows < 2**31 else torch.int64
        self.batches = 0
        self.closed = False
        self.failure: UsageError | None = None

    def gather(self, kind: Kind, rows: Sequence[torch.Tensor] = ()) -> list[tuple[torch.Tensor, list[int]]] | None:
        """Return for each embedding the distinct rows of all ranks, one after the other, and how many each rank has;
        None where no batch has come.

        Raises UsageError, on all ranks alike, where some have left the loop and others have not.
        """
        rows = rows or [torch.empty(0, dtype=torch.int64)] * self._embeddings
        header = torch.tensor([kind, *(each.numel() for each in rows)], dtype=self._dtype)
        messages = self._engine.allgather(torch.cat([header, *(each.to(self._dtype) for each in rows)]))
        kinds = [Kind(int(message[0])) for message in messages]
        if not self._is_batch(kinds):
            self.closed = True
            return None
        self.batches += 1
        gathered: list[list[torch.Tensor]] = [[] for _ in range(self._embeddings)]
        for rank, message in enumerate(messages):
            lengths = message[1 : 1 + self._embeddings].tolist()
            blocks = message[1 + self._embeddings :]
            if sum(lengths) != blocks.numel():
                raise PayloadError(f"rank {rank} tells {blocks.numel()} rows of its next batch, and lengths {lengths}")
            for of, block in zip(gathered, torch.split(blocks, lengths), strict=True):
                of.append(block.to(torch.int64))
        return [(torch.cat(blocks), [block.numel() for block in blocks]) for blocks in gathered]

    def _is_batch(self, kinds: Sequence[Kind]) -> bool:
        ranks = {kind: [rank for rank, told in enumerate(kinds) if told == kind] for kind in Kind}
        others = [rank for kind in (Kind.BATCH, Kind.END) for rank in ranks[kind]]
        if ranks[Kind.LEFT] and others:
            raise UsageError(
                f"rank {ranks[Kind.LEFT][0]} has left the loop over its batches, and rank {others[0]} has not: all "
                "ranks must leave it behind the same batch"
            )
        if ranks[Kind.BATCH] and ranks[Kind.END]:
            self.failure = UsageError(
                f"the loader of rank {ranks[Kind.END][0]} has ended after {self.batches} batches, and that of rank "
                f"{ranks[Kind.BATCH][0]} goes on: all ranks must have equally many, as by "
                "torch.utils.data.DistributedSampler"
            )
        return bool(ranks[Kind.BATCH]) and not ranks[Kind.END]
