"""The planner of embedding rows, and the distinct rows of a batch, in C++ (csrc/embedding/)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hvd_compress.errors import PayloadError
from hvd_compress.native.module import compiled

MOST_ROWS = 1 << 47
"""Of an embedding: what csrc/embedding/divisor.hpp divides exactly."""


class Lists(NamedTuple):
    """Lists of whole numbers, one a member: all in one, and how long each is."""

    all: torch.Tensor
    lengths: list[int]

    def split(self) -> list[torch.Tensor]:
        return list(torch.split(self.all, self.lengths))


class Lane(NamedTuple):
    """What one member does in one lane of an exchange. See struct Lane in csrc/embedding/lookahead.hpp.

    Attributes:
        gradients: positions in this member's batch whose gradients go to each owner.
        compressed: the same, of rows that this member uses next, where they travel compressed.
        records: slots whose rows with states go to each owner.
        updated: rows of this owner's shard that it updates.
        gradients_from: indices into `updated`, by the rank whose gradients they are for.
        compressed_from: the same, of gradients that are compressed.
        records_from: rows of the shard that each rank returns.
        rows_to: rows of the shard that each rank gets.
        records_to: the same, with states.
        rows_into: slots for the rows that each owner sends.
        records_into: the same, with states.
    """

    gradients: Lists
    compressed: Lists
    records: Lists
    updated: torch.Tensor
    gradients_from: Lists
    compressed_from: Lists
    records_from: Lists
    rows_to: Lists
    records_to: Lists
    rows_into: Lists
    records_into: Lists


class Counts(NamedTuple):
    """How many rows an exchange is about, over all members: of the batch that was trained on those that are `used`,
    `single_user` of them by one rank alone, `kept` of these by the same for its next use; the rest is synchronised now,
    later, or evicted. `prefetched`: rows of admitted batches that no cache had, `urgent` ones of the next step.
    """

    used: int
    single_user: int
    kept: int
    sync_now: int
    sync_later: int
    evicted: int
    prefetched: int
    urgent: int


class Rows(NamedTuple):
    """The rows of Counts, each an int64 array, and of those that stay the batch that uses them next."""

    single_user: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    sync_now: npt.NDArray[np.int64]
    sync_later: npt.NDArray[np.int64]
    evicted: npt.NDArray[np.int64]
    prefetched: npt.NDArray[np.int64]
    ttl_rows: npt.NDArray[np.int64]
    ttl: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """An exchange between two steps, as one member does it.

    Attributes:
        critical: what the next step waits for.
        later: what may move while it computes.
        alone: positions of the rows in this member's batch that it updates itself.
        slots: of the rows of its next batch, by position.
        admitted: the last batch whose rows are in caches, or will be.
        occupied: slots of this member's cache behind the exchange.
        overflows: the member in whose cache the next batch does not fit, and how many rows it would hold; or None.
    """

    critical: Lane
    later: Lane
    alone: torch.Tensor
    slots: torch.Tensor
    admitted: int
    occupied: int
    overflows: tuple[int, int] | None
    counts: Counts
    rows: Rows | None


class NativeLookahead:
    """class Lookahead of csrc/embedding/lookahead.hpp. The caller has checked what it passes."""

    def __init__(
        self,
        members: int,
        member: int,
        owners: Sequence[int],
        trainers: Sequence[int],
        cache_rows: int,
        lookahead: int,
        replicated: bool = False,
        delayed: bool = True,
        compressed: bool = False,
    ) -> None:
        self._native = compiled.EmbeddingLookahead(
            members, member, list(owners), list(trainers), cache_rows, lookahead, replicated, delayed, compressed
        )

    def add(self, rows: torch.Tensor, lengths: Sequence[int], limit: int = MOST_ROWS) -> None:
        """Add the next batch: the distinct rows of each member, `lengths` of them, int64, one after the other.

        It is fastest where each member's rows are in the order of UniqueRows.

        Raises:
            PayloadError: a row is not within 0..limit-1; nothing is added then.
        """
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        assert rows.dtype == torch.int64
        assert rows.is_contiguous()
        assert rows.numel() == offsets[-1]
        bad = self._native.add(rows.data_ptr(), offsets, limit)
        if bad >= 0:
            member = bisect_right(offsets, bad) - 1
            raise PayloadError(f"rank {member} uses row {int(rows[bad])} of an embedding that has rows 0..{limit - 1}")

    def fill(self) -> int:
        """Admit what fits by now, and return the number of the last batch that is admitted."""
        return self._native.fill()

    def plan(self, tells: bool = False) -> Exchange:
        """Plan the exchange behind the next step, the first time the one before the first step."""
        (critical, later, alone, slots, admitted, occupied, member, rows, counts), told = self._native.plan(tells)
        return Exchange(
            _lane(critical),
            _lane(later),
            torch.from_numpy(alone),
            torch.from_numpy(slots),
            admitted,
            occupied,
            (member, rows) if member >= 0 else None,
            Counts(*counts),
            None if told is None else Rows(*told),
        )

    def kept(self) -> tuple[Lists, Lists]:
        """Return slots that this member keeps, by owner, and rows of this owner's shard that each member keeps."""
        slots, rows = self._native.kept()
        return _lists(slots), _lists(rows)


def _lists(pair: tuple[npt.NDArray[np.int64], list[int]]) -> Lists:
    return Lists(torch.from_numpy(pair[0]), pair[1])


def _lane(lists: tuple[Any, ...]) -> Lane:
    gradients, compressed, records, updated, *others = lists
    before = _lists(gradients), _lists(compressed), _lists(records)
    return Lane(*before, torch.from_numpy(updated), *map(_lists, others))


class UniqueRows:
    """The distinct rows of one batch after the other."""

    def __init__(self) -> None:
        self._native = compiled.EmbeddingUniqueRows()
        self.rows = torch.empty(0, dtype=torch.int64)

    def collect(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct rows of `ids` (n,), int64, nearly in the order of hashes, and each id's position."""
        assert ids.dtype == torch.int64
        assert ids.is_contiguous()
        rows, positions = torch.empty_like(ids), torch.empty_like(ids)
        count = self._native.collect(ids.data_ptr(), ids.numel(), rows.data_ptr(), positions.data_ptr())
        self.rows = rows[:count].clone()
        return self.rows, positions

    def find(self, ids: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        """Return the position of each id among the rows that were collected last, and where the first id stands that
        is none of them."""
        assert ids.dtype == torch.int64
        assert ids.is_contiguous()
        positions = torch.empty_like(ids)
        missing = self._native.find(ids.data_ptr(), ids.numel(), self.rows.data_ptr(), positions.data_ptr())
        return positions, None if missing < 0 else missing


def initial_values(
    rows: torch.Tensor, offsets: torch.Tensor, bounds: torch.Tensor, seed: int, into: torch.Tensor
) -> None:
    """Write initial values of rows (n,) to float32 `into` (n, dim), whose rows may lie apart.

    Args:
        offsets: id of the first row of each table, int64.
        bounds: of the values of each table, float32.
        seed: 0 to 2**64 - 1.
    """
    assert rows.dtype == offsets.dtype == torch.int64
    assert rows.is_contiguous()
    assert bounds.dtype == into.dtype == torch.float32
    assert into.stride(1) == 1
    assert into.shape[0] == rows.numel()
    compiled.embedding_initial_values(
        rows.data_ptr(),
        rows.numel(),
        offsets.data_ptr(),
        bounds.data_ptr(),
        bounds.numel(),
        into.shape[1],
        seed,
        into.data_ptr(),
        into.stride(0),
    )
