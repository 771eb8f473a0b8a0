"""Batches that come: each rank tells all others which rows its next batch uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UsageError


class Kind(IntEnum):
    """What a rank has to tell."""

    BATCH = 0
    END = 1
    """Its loader has no more batches."""
    LEFT = 2
    """Its program has left the loop over them."""
    FAILED = 3
    """Its loader has failed, or ids of its batch are wrong."""
    COLLECT = 4
    """Owners are to have all rows now."""
    FOLLOWS = 5
    """It is a server, and does what the others tell."""


@dataclass(frozen=True)
class Gathered:
    """Which rows all ranks use of an embedding in a batch: one rank's after the other, `lengths` of them each."""

    rows: torch.Tensor
    lengths: list[int]


class Coming:
    """Gathers what all ranks tell. All methods that communicate are collective.

    A message has as much room as the longest one before has taken, and an eighth more, so that no round is needed for
    lengths; what does not fit follows.

    Attributes:
        batches: how many have been gathered.
        failure: why ranks have not equally many batches, to be raised when they have trained on the last one of all.
    """

    def __init__(self, engine: Engine, embeddings: int, rows: int) -> None:
        """`rows`: of the largest embedding, by which all ranks know how wide an id is."""
        self._engine, self._embeddings = engine, embeddings
        self._dtype = torch.int32 if rows < 2**31 else torch.int64
        self._room = 0
        self.batches = 0
        self.failure: UsageError | None = None

    def gather(self, kind: Kind, rows: Sequence[torch.Tensor] = (), why: str = "") -> list[Gathered] | Kind:
        """Return what all ranks tell of each embedding; where no batch has come, what has. `why`: of Kind.FAILED.

        Raises, on all ranks alike: UsageError where some have left the loop and others have not; ConfigError, in the
        words of the rank that has failed, where one has.
        """
        own = [*rows] or [torch.empty(0, dtype=torch.int64)] * self._embeddings
        words = torch.tensor(list(why.encode()), dtype=self._dtype)
        header = torch.tensor([kind, len(words), *(each.numel() for each in own)], dtype=self._dtype)
        headers, bodies = self._exchange(header, torch.cat([words, *(each.to(self._dtype) for each in own)]))
        kinds = [Kind(int(each[0])) for each in headers]
        for failed, body in zip(kinds, bodies, strict=True):
            if failed is Kind.FAILED:
                raise ConfigError(bytes(body.tolist()).decode())
        if (what := self._agreed(kinds)) is not Kind.BATCH:
            return what
        self.batches += 1
        lengths = [each[2:].tolist() for each in headers]
        blocks = [torch.split(body, each) for body, each in zip(bodies, lengths, strict=True)]
        return [
            Gathered(torch.cat([of[index] for of in blocks]).to(torch.int64), [each[index] for each in lengths])
            for index in range(self._embeddings)
        ]

    def _exchange(self, header: torch.Tensor, body: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the headers and the bodies of all ranks."""
        size = header.numel()
        message = header.new_zeros(size + self._room)
        message[:size] = header
        message[size : size + body.numel()] = body[: self._room]
        world = self._engine.world_size
        first = self._engine.allgather(message, [message.numel()] * world)
        headers = [each[:size] for each in first]
        lengths = [int(each[1:].sum()) for each in headers]
        bodies = [each[size:][:length] for each, length in zip(first, lengths, strict=True)]
        left = [max(0, length - self._room) for length in lengths]
        if any(left):
            rest = self._engine.allgather(body[self._room :].contiguous(), left)
            bodies = [torch.cat(both) for both in zip(bodies, rest, strict=True)]
        self._room = max(lengths) * 9 // 8
        return headers, bodies

    def _agreed(self, kinds: Sequence[Kind]) -> Kind:
        ranks = {kind: [rank for rank, told in enumerate(kinds) if told == kind] for kind in Kind}
        others = [rank for kind in (Kind.BATCH, Kind.END, Kind.COLLECT) for rank in ranks[kind]]
        if ranks[Kind.LEFT] and others:
            raise UsageError(
                f"rank {ranks[Kind.LEFT][0]} has left the loop over its batches, and rank {others[0]} has not: all "
                "ranks must leave it behind the same batch"
            )
        if ranks[Kind.LEFT]:
            return Kind.LEFT
        if ranks[Kind.COLLECT]:
            return self._collects(ranks)
        if ranks[Kind.BATCH] and ranks[Kind.END]:
            self.failure = UsageError(
                f"the loader of rank {ranks[Kind.END][0]} has ended after {self.batches} batches, and that of rank "
                f"{ranks[Kind.BATCH][0]} goes on: all ranks must have equally many, as by "
                "torch.utils.data.DistributedSampler"
            )
        return Kind.END if ranks[Kind.END] else Kind.BATCH

    def _collects(self, ranks: dict[Kind, list[int]]) -> Kind:
        if others := ranks[Kind.BATCH] + ranks[Kind.END]:
            raise UsageError(
                f"rank {ranks[Kind.COLLECT][0]} wants the state of the tables, and rank {others[0]} goes on: all ranks "
                "must ask for it behind the same batch"
            )
        return Kind.COLLECT
