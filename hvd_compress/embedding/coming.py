"""Batches that come: each rank tells all others which rows its next batch uses."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, PayloadError, UsageError


class Kind(IntEnum):
    """What a rank has to tell."""

    BATCH = 0
    END = 1
    """Its loader has no more batches."""
    LEFT = 2
    """Its program has left the loop over them."""
    FAILED = 3
    """Its loader has failed, or ids of its batch are wrong."""


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

    def gather(
        self, kind: Kind, rows: Sequence[torch.Tensor] = (), why: str = ""
    ) -> list[tuple[torch.Tensor, list[int]]] | None:
        """Return for each embedding the distinct rows of all ranks, one after the other, and how many each rank has;
        None where no batch has come. `why`: of Kind.FAILED.

        Raises, on all ranks alike: UsageError where some have left the loop and others have not; ConfigError, in the
        words of the rank that has failed, where one has.
        """
        blocks = [*rows] or [torch.empty(0, dtype=torch.int64)] * self._embeddings
        words = torch.tensor(list(why.encode()), dtype=self._dtype)
        header = torch.tensor([kind, *(each.numel() for each in blocks)], dtype=self._dtype)
        messages = self._engine.allgather(torch.cat([header, *(each.to(self._dtype) for each in blocks), words]))
        kinds = [Kind(int(message[0])) for message in messages]
        for failed, message in zip(kinds, messages, strict=True):
            if failed is Kind.FAILED:
                raise ConfigError(bytes(message[1 + self._embeddings :].tolist()).decode())
        if not self._is_batch(kinds):
            self.closed = True
            return None
        self.batches += 1
        gathered: list[list[torch.Tensor]] = [[] for _ in range(self._embeddings)]
        for rank, message in enumerate(messages):
            lengths = message[1 : 1 + self._embeddings].tolist()
            told = message[1 + self._embeddings :]
            if sum(lengths) != told.numel():
                raise PayloadError(f"rank {rank} tells {told.numel()} rows of its next batch, and lengths {lengths}")
            for of, block in zip(gathered, torch.split(told, lengths), strict=True):
                of.append(block.to(torch.int64))
        return [(torch.cat(of), [block.numel() for block in of]) for of in gathered]

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
