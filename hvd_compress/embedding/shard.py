"""Where the rows of tables live: each owner has a shard of them, in memory or in a file that it maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.mapped_file import MappedFile


class Shard:
    """The rows r of all tables with r % owners == number, as records: a row, the state of its optimizer, and in debug
    mode the step that has changed it last.

    A row gets its initial value when it is used first: it depends on nothing but the seed and its id. So a file has
    memory and disk for those rows alone that were used.

    Attributes:
        records: float32 (rows, layout.record_width). Of rows that were never used they are zeros.
    """

    def __init__(self, layout: Layout, number: int, owners: int, folder: Path | None = None) -> None:
        """`folder`: where the shard's file is made, or found if there is one; None: memory.

        Raises:
            ConfigError: the file is of other tables, or cannot be made.
        """
        self.layout, self.number, self.owners = layout, number, owners
        self.rows = max(0, -(-(layout.rows - number) // owners))
        if folder is None:
            self._file: MappedFile | None = None
            self.records = torch.zeros(self.rows, layout.record_width)
            self.used = torch.zeros(self.rows, dtype=torch.bool)
        else:
            name = f"{layout.name}.{number + 1}-of-{owners}"
            self._file = MappedFile(folder / f"{name}.rows", (self.rows, layout.record_width), torch.float32)
            self.records = self._file.tensor
            self.used = MappedFile(folder / f"{name}.used", (self.rows,), torch.bool).tensor

    @classmethod
    def of(cls, layout: Layout, rank: int, owners: Sequence[int], folder: Path | None) -> Shard:
        """Return what a rank has of the rows, where these ranks own all; it may be nothing."""
        if rank in owners:
            return cls(layout, owners.index(rank), len(owners), folder)
        return cls(layout, layout.rows, len(owners))

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the records of these rows, by their numbers within the shard, int64 (n,)."""
        self._fetch(rows)
        self._initialise(rows)
        return self.records.index_select(0, rows)

    def write(self, rows: torch.Tensor, records: torch.Tensor) -> None:
        """Take records (n, record_width) that another rank has updated."""
        if rows.numel():
            self._fetch(rows)
            self.records.index_copy_(0, rows, records)
            self.used[rows] = True

    def load(self, ids: torch.Tensor, records: torch.Tensor) -> None:
        """Take records (n, record_width) that were saved, of those ids (n,) that it owns."""
        mine = ids % self.owners == self.number
        self.write(ids[mine] // self.owners, records[mine])

    def update(self, rows: torch.Tensor, gradients: torch.Tensor, step: int) -> torch.Tensor:
        """Update distinct rows by gradients (n, dim) of a step, and return their records."""
        records = self.read(rows)
        if rows.numel():
            self.layout.update(records, gradients, step)
            self.records.index_copy_(0, rows, records)
        return records

    def ids(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the ids of rows of this shard."""
        return rows * self.owners + self.number

    def _fetch(self, rows: torch.Tensor) -> None:
        if self._file is not None:
            self._file.fetch(rows)

    def _initialise(self, rows: torch.Tensor) -> None:
        fresh = rows[~self.used[rows]]
        if fresh.numel():
            records = torch.zeros(fresh.numel(), self.layout.record_width)
            self.layout.initialise(records, self.ids(fresh))
            self.records.index_copy_(0, fresh, records)
            self.used[fresh] = True
